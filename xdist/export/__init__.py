"""Export: pending graphs and torch's exported programs as StableHLO, in files that JAX runs alone.

A graph is what some slots of a tape need, as a JAX function of its leaves (`graph`); JAX lowers it
(`lower`), and `modules` makes of that what torch_xla's users expect to see.
"""
