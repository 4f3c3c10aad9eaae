"""A tape goes in, a program that XLA compiled comes out, cached by what it was made of.

`program` is the way in; how its rows become JAX, where it runs (one device, ranks, all devices of
the process) and what of JAX's internals that needs stand beside it.
"""
