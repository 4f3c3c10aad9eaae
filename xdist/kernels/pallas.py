"""Kernels that users write with Pallas: as functions of device tensors, and as payloads for TPUs.

A kernel is a JAX function whose body is a `pallas_call`. On a TPU it runs as it is; elsewhere it is
interpreted, which is slow and computes the same.
"""

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import numpy as np
import torch
from jax.experimental.pallas import tpu as pallas_tpu

from torch_xdist import dtypes, metrics
from torch_xdist.errors import ArgumentError
from torch_xdist.kernels.rows import has_pallas, in_32_bits, kernel_row

# Pallas kernels compute in the dtypes they are given; torch_xla had a mode in which they did not.
_XLA_USE_BF16 = False
# The compiled kernel for each call that `trace_pallas` has seen with use_cache.
trace_pallas_arg_to_payload: dict[tuple[Any, ...], str | None] = {}


def convert_torch_dtype_to_jax(dtype: torch.dtype) -> Any:
    """The dtype as JAX has it."""
    return dtypes.to_jax(dtype)


def to_jax_shape_dtype_struct(tensor: torch.Tensor) -> jax.ShapeDtypeStruct:
    """Shape and dtype of a tensor, as JAX takes them in the place of an array."""
    return jax.ShapeDtypeStruct(tuple(tensor.shape), convert_torch_dtype_to_jax(tensor.dtype))


def _extract_backend_config(module: Any) -> str | None:
    """The kernel that stands in a lowered module: the text of its first custom call, or None."""
    for function in module.body.operations:
        for block in function.regions[0].blocks:
            for operation in block.operations:
                if operation.name == "stablehlo.custom_call":
                    return operation.attributes["backend_config"].value  # type: ignore[no-any-return]
    return None


def trace_pallas(
    kernel: Callable[..., Any],
    *args: Any,
    static_argnums: Any = None,
    static_argnames: Any = None,
    use_cache: bool = False,
    **kwargs: Any,
) -> tuple[str | None, list[torch.Tensor]]:
    """(the kernel compiled for a TPU, as the text of its custom call; the tensors among `args`).

    Args:
        static_argnums, static_argnames: of `jax.jit`.
        use_cache: compile once for each kernel, shapes, dtypes and keyword arguments; the counter
            trace_pallas_cache_hit counts the other calls.

    On a machine without a TPU JAX must be told which one is meant, by an abstract mesh.
    """
    abstract = [to_jax_shape_dtype_struct(x) if torch.is_tensor(x) else x for x in args]
    tensors = [x for x in args if torch.is_tensor(x)]
    key = (
        jax.config.jax_default_matmul_precision,  # type: ignore[attr-defined]
        kernel,
        *map(_frozen, (static_argnums, static_argnames, abstract, sorted(kwargs.items()))),
    )
    if use_cache and key in trace_pallas_arg_to_payload:
        metrics.count("trace_pallas_cache_hit")
        return trace_pallas_arg_to_payload[key], tensors
    with jax.enable_x64(False):
        jitted = jax.jit(kernel, static_argnums=static_argnums, static_argnames=static_argnames)
        lowered = jitted.trace(*abstract, **kwargs).lower(lowering_platforms=("tpu",))
        payload = _extract_backend_config(lowered.compiler_ir())
    if use_cache:
        trace_pallas_arg_to_payload[key] = payload
    return payload, tensors


def _frozen(value: Any) -> Hashable:
    """What a kernel is compiled for: arrays by shape and dtype, values by their type too."""
    if isinstance(value, np.ndarray | jax.Array | jax.ShapeDtypeStruct):
        return tuple(value.shape), str(value.dtype)
    if isinstance(value, list | tuple):
        return tuple(map(_frozen, value))
    return type(value), value if isinstance(value, Hashable) else repr(value)


def make_kernel_from_pallas(
    kernel: Callable[..., Any], output_shape_dtype_fn: Callable[..., Any]
) -> Callable[..., Any]:
    """A function of device tensors that runs the kernel as one row.

    Args:
        kernel: a JAX function.
        output_shape_dtype_fn: of the same arguments; returns a list of (shape, torch dtype).

    The function takes what the kernel takes, and static_argnums and static_argnames, which are of
    no consequence here: what is no tensor is static.
    """
    return functools.partial(_call, kernel, output_shape_dtype_fn)


def _call(
    kernel: Callable[..., Any],
    output_shape_dtype_fn: Callable[..., Any],
    *args: Any,
    static_argnums: Any = None,
    static_argnames: Any = None,
    **kwargs: Any,
) -> Any:
    is_tensor = tuple(torch.is_tensor(x) for x in args)
    rest = tuple(None if tensor else x for x, tensor in zip(args, is_tensor))
    words = tuple(sorted(kwargs.items()))
    form = _filled(kernel, is_tensor, rest, words, _frozen((rest, words)), has_pallas())
    name = f"pallas::{getattr(kernel, '__name__', 'kernel')}"
    found = kernel_row(name, form, [x for x in args if torch.is_tensor(x)])
    wanted = output_shape_dtype_fn(*args)
    _check_results(name, found, wanted)
    return found[0] if len(found) == 1 else tuple(found)


@functools.lru_cache(maxsize=256)
def _filled(
    kernel: Callable[..., Any],
    is_tensor: tuple[bool, ...],
    rest: tuple[Any, ...],
    words: tuple[tuple[str, Any], ...],
    kinds: Hashable,
    on_tpu: bool,
) -> Callable[..., Any]:
    """The kernel as a function of arrays alone; interpreted where there is no TPU.

    `kinds` tells 2, 2.0 and True apart, which are equal, but JAX promotes by their types.
    """

    def call(*arrays: jax.Array) -> Any:
        given = iter(arrays)
        args = [next(given) if tensor else x for tensor, x in zip(is_tensor, rest)]
        if on_tpu:
            return kernel(*args, **dict(words))
        with pallas_tpu.force_tpu_interpret_mode():
            return kernel(*args, **dict(words))

    return in_32_bits(call)


def _check_results(name: str, found: Sequence[torch.Tensor], wanted: Any) -> None:
    """Raise ArgumentError where a kernel gives something else than was said."""
    if not isinstance(wanted, list):
        raise ArgumentError(
            f"{name}: output_shape_dtype_fn returned {type(wanted).__name__}; a list of"
            " (shape, dtype) is needed"
        )
    there = [(tuple(t.shape), t.dtype) for t in found]
    said = [(tuple(shape), dtype) for shape, dtype in wanted]
    if there != said:
        raise ArgumentError(
            f"{name}: the kernel returns {there}, but output_shape_dtype_fn says {said}; let both"
            " say the same"
        )
