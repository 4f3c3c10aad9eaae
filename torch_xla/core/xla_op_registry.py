"""`xor`: operators of device tensors, written with `xla_builder`."""

from torch_xdist.builder.registry import Op, register

__all__ = ["Op", "register"]
