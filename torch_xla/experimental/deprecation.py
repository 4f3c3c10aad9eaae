"""Old names of functions."""

from torch_xdist.torch_xla_compat.deprecation import (
    FN,
    deprecated,
    mark_deprecated,
    register_deprecated,
)

__all__ = [
    "FN",
    "deprecated",
    "mark_deprecated",
    "register_deprecated",
]
