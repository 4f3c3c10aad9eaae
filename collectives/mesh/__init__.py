"""The transport between hosts and accelerators: XLA's own collectives over a mesh of all ranks.

In: the collectives of a program. Out: XLA's, inside `shard_map`; before it runs, the ranks agree
that they run the same ones. `transport` joins the ranks, `lowering` holds the collectives.
"""
