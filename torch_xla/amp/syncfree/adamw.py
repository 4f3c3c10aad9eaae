"""`AdamW`, under the name of its own module."""

from torch_xdist.training.syncfree import AdamW

__all__ = ["AdamW"]
