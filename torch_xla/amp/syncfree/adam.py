"""`Adam`, under the name of its own module."""

from torch_xdist.training.syncfree import Adam

__all__ = ["Adam"]
