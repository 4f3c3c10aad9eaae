"""The lazy core: torch operators recorded as rows, cut into programs, compiled by XLA.

The folders, ground first: trace, run, devices, alias, record, jax_side, composites, torch_side.
"""
