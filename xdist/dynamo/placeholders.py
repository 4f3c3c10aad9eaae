"""What stands in the place of a buffer for a tensor whose rows were forgotten."""

from typing import Any

from torch_xdist import dtypes
from torch_xdist.core.trace.tensor_types import TensorType
from torch_xdist.errors import ValueLostError


class Cleared:
    """A buffer that is not there. Who reads it, or runs a program on it, is told so."""

    def __init__(self, type_: TensorType) -> None:
        self.shape = type_.shape
        self.dtype = dtypes.to_jax(type_.dtype)
        self._text = repr(type_)

    def is_deleted(self) -> bool:
        """Its value is gone."""
        return True

    def __jax_array__(self, *_: Any, **__: Any) -> Any:
        raise ValueLostError(
            f"a tensor {self._text} has no value: what should have computed it was forgotten"
            " (_clear_pending_irs); write to the tensor first"
        )

    __array__ = __jax_array__
