"""torch_xla's kernels by its names: attention, products by groups, quantized products.

Each is one row of the trace. TPUs run JAX's Pallas kernels; other hardware computes the same by
XLA's own operators, and that form is what the kernels are tested against.
"""
