"""To be told when a tensor is computed."""

from torch_xdist.torch_xla_compat.ready import on_ready_callback, on_ready_event

__all__ = ["on_ready_callback", "on_ready_event"]
