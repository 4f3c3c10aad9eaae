"""What loops of torch_xla's own are written with: numbered parameters, and slices along dim 0."""

from collections.abc import Sequence
from typing import TypeVar

import torch

from torch_xdist.builder.graph import XlaBuilder
from torch_xdist.builder.op import Op, mkparam
from torch_xdist.builder.shapes import tensor_shape

U = TypeVar("U")


class _Parameters:
    """The parameters of a computation, and the tensors they stand for."""

    def __init__(self, name: str) -> None:
        self._builder = XlaBuilder(name)
        self._params: list[Op] = []
        self._param_tensors: list[torch.Tensor] = []

    def _add(self, tensor: torch.Tensor, number: int) -> int:
        self._params.append(mkparam(self._builder, number, tensor_shape(tensor)))
        self._param_tensors.append(tensor)
        return number


class Builder(_Parameters):
    """Numbers tensors as the parameters of a computation; asked by calls."""

    def add_param(self, val: torch.Tensor) -> int:
        """The number of a parameter more."""
        return self._add(val, len(self._params))

    def params(self) -> tuple[Op, ...]:
        """The parameters as operations."""
        return tuple(self._params)

    def param_tensors(self) -> tuple[torch.Tensor, ...]:
        """What they stand for."""
        return tuple(self._param_tensors)

    def num_params(self) -> int:
        """How many there are."""
        return len(self._params)


class XlaBuildHelper(_Parameters):
    """Numbers tensors as the parameters of a computation; asked by attributes."""

    def add_param(self, val: torch.Tensor, idx: int | None = None) -> int:
        """The number of a parameter more: `idx`, or the next one."""
        return self._add(val, len(self._params) if idx is None else idx)

    @property
    def params(self) -> tuple[Op, ...]:
        """The parameters as operations."""
        return tuple(self._params)

    @property
    def param_tensors(self) -> tuple[torch.Tensor, ...]:
        """What they stand for."""
        return tuple(self._param_tensors)

    @property
    def num_params(self) -> int:
        """How many there are."""
        return len(self._params)


def dynamic_slice(xs: Op, idx: Op) -> Op:
    """One row of an array: [n, ...] -> [...]."""
    sizes = list(xs.shape().sizes)
    zeros = [idx.zeros_like() for _ in sizes[1:]]
    return xs.dynamic_slice([idx, *zeros], [1, *sizes[1:]]).reshape(sizes[1:])


def dynamic_update_slice(ys: Op, y: Op, idx: Op) -> Op:
    """An array with another row: [n, ...], [...] -> [n, ...]."""
    zeros = [idx.zeros_like() for _ in ys.shape().sizes[1:]]
    return ys.dynamic_update_slice(y.broadcast([1]), [idx, *zeros])


def split(seq: Sequence[U], *part_lengths: int) -> tuple[Sequence[U], ...]:
    """A sequence in parts of these lengths, and the rest."""
    parts, start = [], 0
    for length in part_lengths:
        parts.append(seq[start : start + length])
        start += length
    return (*parts, seq[start:])
