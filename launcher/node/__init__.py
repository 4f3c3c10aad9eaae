"""A node of `xla-run --nnodes` that is not node 0: it comes to the head there by itself.

It holds the one connection to the head, with an ordinary agent behind it, and takes the command it
runs from its own command line alone.
"""
