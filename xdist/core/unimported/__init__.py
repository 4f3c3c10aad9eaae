"""Slow modules of torch that are imported by who uses them, not with the first device tensor.

In: torch's imports as they are. Out: a start without dynamo, sympy and DTensor.
"""
