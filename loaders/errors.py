"""Every error of the loaders, each also a builtin, below the device's LoaderError.

LoaderError             RuntimeError  (torch_xdist.errors) the root
  ArgumentError         ValueError    a parameter that cannot work
  BatchError            ValueError    a batch of the wrong form, or a tensor that cannot be moved
  UnevenBatchesError                  ranks with different numbers of batches
"""

from torch_xdist.errors import LoaderError


class ArgumentError(LoaderError, ValueError):
    """A parameter of a loader that cannot work."""


class BatchError(LoaderError, ValueError):
    """A batch of the wrong form, or one with a tensor that cannot be moved."""


class UnevenBatchesError(LoaderError):
    """Ranks whose loaders have different numbers of batches."""
