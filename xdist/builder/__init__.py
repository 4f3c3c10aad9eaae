"""Computations made by hand and taken apart, by the names of torch_xla's `xla_builder`.

In: operations one after another, HLO modules, pending graphs. Out: functions of JAX arrays, which
run as rows of a trace.
"""
