"""Functions of nested arguments as rows: JAX functions, and functions of operations.

A callable makes one flat function per form of its arguments: their shapes, dtypes and structure,
and the values of those that are no tensors.
"""

import abc
import copy
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import torch
from torch.utils import _pytree as pytree

from torch_xdist.builder.op import Op, create_computation
from torch_xdist.builder.shapes import Shape
from torch_xdist.builder.user_computation import user_computation
from torch_xdist.core.jax_side.differentiable import differentiable_row
from torch_xdist.dtypes import to_jax
from torch_xdist.errors import ArgumentError

_serial = itertools.count()
# Stands in the place of a tensor among the arguments.
_TENSOR = object()


class FlattenedInputFunc:
    """A function of nested arguments as one of a flat list of tensors.

    `preprocess`, `flat_call` and `postprocess`, one after another, are a call of the function.
    """

    def __init__(self, orig_func: Callable[..., Any]) -> None:
        self.orig_func = orig_func
        self.non_tensors: tuple[Any, ...] = ()
        self.in_spec: Any = None
        self.out_spec: Any = None

    def preprocess(self, args: Any, kwargs: Any = None) -> tuple[torch.Tensor, ...]:
        """The tensors among the arguments; the rest is kept for `flat_call`."""
        leaves, self.in_spec = self.flatten((tuple(args), kwargs or {}))
        self.non_tensors = tuple(_TENSOR if _is_tensor(v) else self.kept(v) for v in leaves)
        return tuple(leaf for leaf in leaves if _is_tensor(leaf))

    def flat_call(self, flat_input: Sequence[Any]) -> list[Any]:
        """The function of what stands in the tensors' places; its result, flat."""
        if self.in_spec is None:
            raise ArgumentError(
                "FlattenedInputFunc.flat_call: no arguments are known yet; call preprocess before"
            )
        given = iter(flat_input)
        leaves = [next(given) if leaf is _TENSOR else leaf for leaf in self.non_tensors]
        args, kwargs = self.unflatten(leaves, self.in_spec)
        results, self.out_spec = self.flatten(self.orig_func(*args, **kwargs))
        return list(results)

    def postprocess(self, res_flattened: Sequence[Any]) -> Any:
        """A flat result in the form the function gave it."""
        if self.out_spec is None:
            raise ArgumentError(
                "FlattenedInputFunc.postprocess: no result is known yet; call flat_call before"
            )
        return self.unflatten(res_flattened, self.out_spec)

    def flatten(self, inputs: Any) -> tuple[list[Any], Any]:
        """The leaves of a nest, and its form."""
        return pytree.tree_flatten(inputs)

    def unflatten(self, flattened: Sequence[Any], spec: Any) -> Any:
        """The nest of a form with these leaves."""
        return pytree.tree_unflatten(flattened, spec)

    def kept(self, value: Any) -> Any:
        """An argument that is no tensor, as the function takes it."""
        return value


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


class JaxFlattenedInputFunc(FlattenedInputFunc):
    """A JAX function: nests are JAX's, and torch's dtypes become JAX's."""

    def flatten(self, inputs: Any) -> tuple[list[Any], Any]:
        """The leaves of a nest, and its form."""
        return jax.tree.flatten(inputs)

    def unflatten(self, flattened: Sequence[Any], spec: Any) -> Any:
        """The nest of a form with these leaves."""
        return jax.tree.unflatten(spec, flattened)

    def kept(self, value: Any) -> Any:
        """A torch dtype becomes JAX's."""
        return to_jax(value) if isinstance(value, torch.dtype) else value


class CompiledCallableWithCache(abc.ABC):
    """A function of nested arguments that is specialized once for each form of them."""

    def __init__(self, flat_input_func: FlattenedInputFunc) -> None:
        self._flat_input_func = flat_input_func
        # One per form: the function as it was flattened then, and what runs it.
        self._cache: dict[Any, tuple[FlattenedInputFunc, Callable[..., Any]]] = {}
        # `preprocess` leaves the form of a call where that of another thread would be.
        self._lock = threading.RLock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            tensors, mine, run = self._found(args, kwargs)
        return mine.postprocess(run(tensors))

    def _found(self, args: Any, kwargs: Any) -> tuple[Any, FlattenedInputFunc, Callable[..., Any]]:
        """The tensors of a call, the function as it is flattened for such, and what runs it."""
        flat = self._flat_input_func
        tensors = flat.preprocess(args, kwargs)
        types = tuple((tuple(t.shape), t.dtype) for t in tensors)
        # 2, 2.0 and True are equal, but JAX promotes by their types.
        plain = tuple((type(value), value) for value in flat.non_tensors)
        key = types, plain, flat.in_spec
        if key not in self._cache:
            self._cache[key] = flat, self.specialize(tensors)
            # What runs is called for every program it is in, so it keeps this form; the next call
            # makes another.
            self._flat_input_func = copy.copy(flat)
        return tensors, *self._cache[key]

    @abc.abstractmethod
    def specialize(self, sample_flat_args: Sequence[torch.Tensor]) -> Callable[..., Any]:
        """What computes the flat result of flat tensors like these."""


class JaxCallable(CompiledCallableWithCache):
    """A JAX function of device tensors, with gradients."""

    def __init__(self, jax_func: Callable[..., Any]) -> None:
        super().__init__(JaxFlattenedInputFunc(jax_func))
        self._name = f"from_jax.{getattr(jax_func, '__name__', 'function')}"

    def specialize(self, sample_flat_args: Sequence[torch.Tensor]) -> Callable[..., Any]:
        """A row of the function."""
        if not sample_flat_args:
            raise ArgumentError(
                f"{self._name}: no device tensor among the arguments; give at least one"
            )
        flat, name = self._flat_input_func, f"{self._name}.{next(_serial)}"

        def function(*arrays: Any) -> list[Any]:
            return flat.flat_call(arrays)

        return lambda tensors: differentiable_row(name, function, tensors)


class XlaCallable(CompiledCallableWithCache):
    """A function of operations (`Op`) of device tensors."""

    def __init__(self, xla_func: Callable[..., Any]) -> None:
        super().__init__(FlattenedInputFunc(xla_func))

    def specialize(self, sample_flat_args: Sequence[torch.Tensor]) -> Callable[..., Any]:
        """A row of the computation that the function makes."""
        flat = self._flat_input_func
        shapes = [Shape.create(Op.from_torch_type(t.dtype), t.shape) for t in sample_flat_args]
        computation = create_computation(
            "xla::computation", lambda *ops: Op.tuple(flat.flat_call(ops)), shapes
        )
        return lambda tensors: user_computation("xla::computation", tensors, computation)


def xla_computation_as_func(computation: Any, name: str | None = None) -> Callable[..., Any]:
    """A computation as a function of a list of device tensors."""
    name = name or "xla::computation"
    full = name if "::" in name else f"xla::{name}"
    return lambda input_tensors: user_computation(full, input_tensors, computation)
