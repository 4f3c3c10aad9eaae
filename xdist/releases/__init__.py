"""The releases of torch and jax this package fits, what it needs of them, and what it replaces.

In: the torch and jax that are installed. Out: one error that lists every hook they lack, or a torch
with exactly the changes of one table. Nothing here knows the device; every other folder may ask.
"""
