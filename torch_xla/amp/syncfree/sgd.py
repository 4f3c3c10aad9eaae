"""`SGD`, under the name of its own module."""

from torch_xdist.training.syncfree import SGD

__all__ = ["SGD"]
