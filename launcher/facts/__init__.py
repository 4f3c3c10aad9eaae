"""What is known: of a job, of this host, of other launchers, of how a job went. Starts no process.

Comes in: the environment, /dev and /proc, the records and log folders of earlier jobs. Goes out:
`Job` and its `placement` (who runs where, with which variables), settings, devices, `Found` of
another launcher, and the records that travel: heartbeats, failures, pickled calls and results.
Everybody else imports from here, and nothing here from them.
"""
