"""The xla devices of this process: which there are, the tensors on them, what moves to and fro.

In: torch's devices, CPU tensors. Out: device tensors whose values a trace records; the ends of
steps.
"""
