"""The calls of `_XLAC` that build computations, by torch_xla's names."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from torch_xdist.builder import graph, hlo_modules, placeholders
from torch_xdist.builder.shapes import kind_of, shape_of, tensor_shape, torch_type
from torch_xdist.core.devices.tensor import XlaTensor


def _xla_op_create_builder(name: str) -> graph.XlaBuilder:
    """Where the operations of a computation are collected."""
    return graph.XlaBuilder(name)


def _xla_op_create(
    builder: graph.XlaBuilder, opname: str, operands: Sequence[graph.XlaOp], args: Mapping[str, Any]
) -> graph.XlaOp:
    """One operation more."""
    return graph.operation(builder, opname, operands, args)


def _xla_op_param(builder: graph.XlaBuilder, param_no: int, py_shape: Any) -> graph.XlaOp:
    """One parameter more."""
    return graph.parameter(builder, param_no, kind_of(py_shape))


def _xla_op_shape(op: graph.XlaOp) -> Any:
    """The shape of an operation's result, as `Shape.shape` has it."""
    return shape_of(op.type)


def _xla_op_builder(op: graph.XlaOp) -> graph.XlaBuilder:
    """Where an operation was made."""
    return op.builder


def _xla_op_build(name: str, root: graph.XlaOp) -> graph.XlaComputation:
    """The computation whose result is `root`."""
    return graph.built(name, root)


def _xla_op_tensor_shape(tensor: torch.Tensor, device: str = "") -> dict[str, Any]:
    """The shape of a tensor, as `Shape.shape` has it."""
    return tensor_shape(tensor).shape


def _xla_op_computation_from_module_proto(name: str, proto: bytes) -> graph.XlaComputation:
    """The computation of a serialized HLO module."""
    return hlo_modules.from_proto(name, proto)


def _xla_computation_text(computation: graph.XlaComputation) -> str:
    """A computation as HLO text."""
    return hlo_modules.text(computation)


def _xla_create_placeholder_tensor(py_shape: Any) -> XlaTensor:
    """A tensor of such a shape without a value."""
    dtype = torch_type(py_shape["type"])
    return placeholders.create_placeholder_tensor(py_shape["sizes"], dtype)
