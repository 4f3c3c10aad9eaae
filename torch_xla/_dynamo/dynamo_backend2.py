"""A backend of torch.compile whose graphs are JAX functions."""

from torch_xdist.dynamo.backend import dynamo_backend

__all__ = ["dynamo_backend"]
