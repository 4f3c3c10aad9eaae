"""Checkpoints of sharded tensors by torch.distributed.checkpoint, each device's part by itself.

In: state dicts of device tensors. Out: folders that any mesh can load, also without SPMD.
"""
