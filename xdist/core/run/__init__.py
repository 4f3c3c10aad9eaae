"""From a tape to results: programs compiled by XLA, their cache, and the cuts that run them.

In: a tape and which of its values are wanted. Out: JAX buffers, and a record of each cut.
"""
