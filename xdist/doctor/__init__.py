"""`python -m torch_xdist.doctor`: what is installed, whether it fits, and what the device finds.

In: this machine and its environment. Out: a report for people or, with --json, for bug trackers. It
has to work where nothing else does: whatever may fail or hang runs in a process of its own.
"""
