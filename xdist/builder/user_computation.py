"""Computations run as rows of the trace."""

from collections.abc import Sequence
from typing import Any

import jax
import torch

from torch_xdist.builder.graph import XlaComputation, frozen
from torch_xdist.builder.shapes import shape_of
from torch_xdist.core.devices.tensor import XlaTensor
from torch_xdist.core.record.jax_ops import record_jax
from torch_xdist.dtypes import to_jax
from torch_xdist.errors import ArgumentError


def user_computation(
    name: str, inputs: Sequence[torch.Tensor], computation: XlaComputation
) -> list[XlaTensor]:
    """Record a computation of device tensors; returns one tensor per array of its result.

    Args:
        name: how graphs show it, "xla::mine".

    Raises ArgumentError where the tensors are not what the computation takes.
    """
    _check(name, inputs, computation)
    structure = jax.tree.structure(computation.parameters)
    function = computation.function

    # It lives as long as programs do, so it holds nothing of the tensors.
    def run(*arrays: Any) -> list[Any]:
        return jax.tree.leaves(function(*jax.tree.unflatten(structure, arrays)))

    key = computation.key, frozen(computation.parameters)
    return record_jax(name.removeprefix("xla::"), run, inputs, key)  # type: ignore[arg-type]


def _check(name: str, inputs: Sequence[torch.Tensor], computation: XlaComputation) -> None:
    wanted = jax.tree.leaves(computation.parameters)
    if len(inputs) != len(wanted) or not wanted:
        raise ArgumentError(
            f"{name}: {len(inputs)} tensors for a computation of {len(wanted)} parameters; give"
            " one for each, and at least one"
        )
    for place, (tensor, type_) in enumerate(zip(inputs, wanted)):
        if tuple(tensor.shape) != type_.shape or to_jax(tensor.dtype) != type_.dtype:
            raise ArgumentError(
                f"{name}: tensor {place} is {tensor.dtype} {tuple(tensor.shape)}, and the"
                f" computation takes {shape_of(type_)}; give it what it was built for"
            )
