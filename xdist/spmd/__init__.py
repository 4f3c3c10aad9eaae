"""One process, all devices: tensors are marked with how they are sharded, XLA does the rest.

In: a mesh of devices, and which of its axes cut which dim of a tensor. Out: values with a tiling,
which the programs of the logical device (`core/sharding`) keep.
"""
