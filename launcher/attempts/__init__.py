"""Which hosts each attempt of a job runs on, and how the user says so.

Comes in: the hosts that were named, and what became of them. Goes out: the hosts of the next
attempt, with a line that tells why they are others; or that there are not enough.
"""
