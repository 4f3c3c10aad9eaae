"""The user's code, copied to every host of a job before its ranks start, over the control plane.

At the head: `tree` reads the folder (`ignored` says what of it is left out), `sender` feeds all
hosts at the same time. On a host: `receiver` builds the folder from what is in `cache` and what
comes. Between them stands a `manifest`; `paths` says where ranks start in the copy.
"""
