"""Operators of device tensors that are written as functions of operations."""

import sys
import threading
from collections.abc import Callable, Hashable
from typing import Any

import torch

from torch_xdist import settings
from torch_xdist.builder import hlo_modules
from torch_xdist.builder.graph import XlaComputation, frozen, snapshot
from torch_xdist.builder.op import create_computation
from torch_xdist.builder.shapes import tensor_shape
from torch_xdist.builder.user_computation import user_computation


class Op:
    """An operator: its function is called once for each combination of shapes and arguments.

    Args:
        name: graphs show it as `xla::_op_NAME`.
        opfn: takes `xla_builder.Op`s and plain keyword arguments, returns one `Op` or a tuple of
            them (`Op.tuple`).
    """

    def __init__(self, name: str, opfn: Callable[..., Any]) -> None:
        self._name = name
        self._opfn = opfn
        self._lock = threading.Lock()
        self._computations: dict[Hashable, XlaComputation] = {}

    def __call__(self, *args: torch.Tensor, **kwargs: Any) -> Any:
        """The result for these tensors: a tensor, or a list of them."""
        shapes = tensor_shape(args)
        types = tuple((shape.dtype, tuple(shape.sizes)) for shape in shapes)
        key = types, frozen({name: snapshot(value) for name, value in kwargs.items()})
        with self._lock:
            computation = self._computations.get(key)
            if computation is None:
                computation = create_computation(self._name, self._opfn, shapes, **kwargs)
                self._computations[key] = computation
                if settings.getenv_as("XLA_OP_PRINT_COMPUTATIONS", bool, False):
                    print(hlo_modules.text(computation), file=sys.stderr)
        results = user_computation(f"xla::_op_{self._name}", args, computation)
        return results[0] if len(results) == 1 else results


def register(name: str, opfn: Callable[..., Any]) -> Op:
    """The operator of a function of operations.

    Example:
        double = register("double", lambda a: a + a)
        y = double(torch.ones(3, device="xla"))
    """
    return Op(name, opfn)
