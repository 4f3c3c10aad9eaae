"""Types of elements and shapes as `xla_builder` writes them."""

from collections.abc import Sequence
from typing import Any

import jax
import torch

from torch_xdist.dtypes import XLA_NAMES, to_jax, to_torch
from torch_xdist.errors import ArgumentError

# The type of one value: an array's, or those of a tuple's parts.
Kind = Any


class Type:
    """XLA's names of element types."""

    F32 = "f32"
    F64 = "f64"
    BF16 = "bf16"
    F16 = "f16"
    U8 = "u8"
    S8 = "s8"
    U16 = "u16"
    S16 = "s16"
    U32 = "u32"
    S32 = "s32"
    U64 = "u64"
    S64 = "s64"
    C64 = "c64"
    C128 = "c128"
    PRED = "pred"


TO_TORCH = {name: dtype for dtype, name in XLA_NAMES.items()}


class Shape:
    """The shape of an operation's result.

    Attributes:
        shape: {"type": "f32", "sizes": (2, 3)}, or a list of such where it is a tuple.
    """

    def __init__(self, shape: Any) -> None:
        self._shape = shape

    @classmethod
    def create(
        cls, dtype: str, sizes: Sequence[int], dynamic_dimensions: Sequence[int] | None = None
    ) -> "Shape":
        """The shape of an array."""
        shape = {"type": str(dtype), "sizes": tuple(sizes)}
        if dynamic_dimensions is not None:
            shape["dynamic_dimensions"] = tuple(dynamic_dimensions)
        return cls(shape)

    @property
    def shape(self) -> Any:
        return self._shape

    def is_tuple(self) -> bool:
        """Whether it is that of a tuple."""
        return isinstance(self._shape, list | tuple)

    def tuple_size(self) -> int:
        """How many parts a tuple has."""
        return len(self._of_tuple("tuple_size"))

    def tuple_shape(self, index: int) -> Any:
        """What `Shape.shape` of one part of a tuple is."""
        return self._of_tuple("tuple_shape")[index]

    def is_dynamic(self) -> bool:
        """Whether it has dims of a size that is a bound."""
        return "dynamic_dimensions" in self._of_array("is_dynamic")

    def as_scalar(self) -> "Shape":
        """A scalar's of the same element type."""
        return Shape.create(self.dtype, ())

    @property
    def rank(self) -> int:
        return len(self._of_array("rank")["sizes"])

    @property
    def sizes(self) -> Any:
        return self._of_array("sizes")["sizes"]

    @property
    def dynamic_dimensions(self) -> Any:
        return self._of_array("dynamic_dimensions").get("dynamic_dimensions", None)

    @property
    def dtype(self) -> str:
        return str(self._of_array("dtype")["type"])

    def _of_tuple(self, asked: str) -> Any:
        if not self.is_tuple():
            raise ShapeError(f"Shape.{asked}: {self._shape} is no tuple; ask is_tuple() before")
        return self._shape

    def _of_array(self, asked: str) -> Any:
        if self.is_tuple():
            raise ShapeError(
                f"Shape.{asked}: {self._shape} is a tuple; take a part with tuple_shape(index)"
            )
        return self._shape


class ShapeError(ArgumentError, AssertionError):
    """A question that a shape has no answer to; torch_xla asserts."""


def mkshape(
    dtype: str, sizes: Sequence[int], dynamic_dimensions: Sequence[int] | None = None
) -> Shape:
    """The shape of an array of elements such as "f32"."""
    return Shape.create(dtype, sizes, dynamic_dimensions=dynamic_dimensions)


def kind_of(shape: Any) -> Kind:
    """The type of a value whose `Shape.shape` this is."""
    if isinstance(shape, list | tuple):
        return tuple(map(kind_of, shape))
    if shape.get("dynamic_dimensions"):
        raise ArgumentError(
            f"xla_builder: {shape} has dims of unknown size, which JAX does not have; give the"
            " sizes"
        )
    return jax.ShapeDtypeStruct(tuple(shape["sizes"]), element_type(shape["type"]))


def torch_type(name: str) -> torch.dtype:
    """The torch dtype of "f32" and the like."""
    if name not in TO_TORCH:
        raise ArgumentError(
            f"xla_builder: there is no element type {name!r}; use one of {', '.join(TO_TORCH)}"
        )
    return TO_TORCH[name]


def element_type(name: str) -> Any:
    """JAX's dtype of "f32" and the like."""
    return to_jax(torch_type(name))


def element_name(dtype: torch.dtype) -> str:
    """XLA's name of a torch dtype, "f32" and the like."""
    if dtype not in XLA_NAMES:
        raise ArgumentError(
            f"xla_builder: XLA has no element type {dtype}; use one of"
            f" {', '.join(map(str, XLA_NAMES))}"
        )
    return XLA_NAMES[dtype]


def shape_of(kind: Kind) -> Any:
    """`Shape.shape` of a value's type."""
    if isinstance(kind, list | tuple):
        return [shape_of(part) for part in kind]
    return {"type": element_name(to_torch(kind.dtype)), "sizes": tuple(kind.shape)}


def tensor_shape(tensor: Any, device: str = "") -> Any:
    """The shape of a tensor; a list of shapes for a list or a tuple of them."""
    if isinstance(tensor, list | tuple):
        return [tensor_shape(one) for one in tensor]
    return Shape.create(element_name(tensor.dtype), tensor.shape)
