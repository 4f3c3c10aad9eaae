"""`stablehlo_custom_call`: an operation of StableHLO that a compiler or a runtime knows by name."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import torch
from jax.extend.core import Primitive
from jax.interpreters import mlir

from torch_xdist.core.devices.tensor import XlaTensor
from torch_xdist.core.programs.jax_internals import is_export
from torch_xdist.core.record.jax_ops import record_jax
from torch_xdist.core.torch_side.xla_namespace import LIBRARY, Kernel, define
from torch_xdist.dtypes import to_jax
from torch_xdist.errors import ArgumentError
from torch_xdist.export import jax_lowering

# Where XLA puts a buffer, by the value of its frontend attribute.
_PLACEMENT = "annotate_device_placement"

# Every target that was called: JAX wants to know which ones an artifact may have.
TARGETS: set[str] = set()
_call_p = Primitive("stablehlo_custom_call")
_call_p.multiple_results = True


@_call_p.def_abstract_eval
def _results(*operands: Any, outputs: tuple[tuple[tuple[int, ...], Any], ...], **_: Any) -> Any:
    return [jax_lowering.shaped(shape, dtype) for shape, dtype in outputs]


def _lowering(ctx: Any, *operands: Any, outputs: Any, frontend_attributes: Any, **rest: Any) -> Any:
    return jax_lowering.custom_call(
        ctx, *operands, frontend_attributes=dict(frontend_attributes), **rest
    )


def _on_cpu(ctx: Any, *operands: Any, target: str, **rest: Any) -> Any:
    # Its memory is the host's: nothing moves, and not every XLA knows the call there.
    if target == _PLACEMENT and not is_export(ctx):
        return operands
    return _lowering(ctx, *operands, target=target, **rest)


mlir.register_lowering(_call_p, _lowering)
mlir.register_lowering(_call_p, _on_cpu, platform="cpu")


def stablehlo_custom_call(
    args: Sequence[Any],
    call_target: str,
    output_shapes: Sequence[Sequence[int]],
    output_dtypes: Sequence[torch.dtype],
    has_side_effect: bool = False,
    backend_config: str = "",
    api_version: int = 0,
    frontend_attributes: Mapping[str, str] | None = None,
) -> Any:
    """Call `call_target` on device tensors; one tensor, or a list of them.

    It runs where XLA knows the target (`jax.ffi.register_ffi_target`); its StableHLO can be had
    everywhere.
    """
    results = xla_custom_call(
        args,
        call_target,
        output_shapes,
        output_dtypes,
        has_side_effect,
        backend_config,
        api_version,
        frontend_attributes or {},
    )
    return results[0] if len(output_shapes) == 1 else results


def xla_custom_call(
    inputs: Sequence[Any],
    target: str,
    output_shapes: Sequence[Sequence[int]],
    output_dtypes: Sequence[torch.dtype],
    has_side_effect: bool,
    backend_config: str,
    api_version: int,
    frontend_attributes: Mapping[str, str],
) -> list[torch.Tensor]:
    """`stablehlo_custom_call`, always a list."""
    if not inputs or len(output_shapes) != len(output_dtypes) or not output_shapes:
        raise ArgumentError(
            f"custom call {target!r}: {len(inputs)} operands, {len(output_shapes)} output shapes"
            f" and {len(output_dtypes)} output dtypes; give at least one operand, and a shape and a"
            " dtype for each output"
        )
    TARGETS.add(target)
    shapes = [tuple(map(int, shape)) for shape in output_shapes]
    params = {
        "target": target,
        "outputs": tuple((s, to_jax(dtype)) for s, dtype in zip(shapes, output_dtypes)),
        "has_side_effect": has_side_effect,
        "backend_config": backend_config,
        "api_version": api_version,
        "frontend_attributes": tuple(sorted(frontend_attributes.items())),
    }

    def lowering(*arrays: jax.Array) -> Any:
        return _call_p.bind(*arrays, **params)

    return list(
        record_jax(f"xla.custom_call.{target}", lowering, list(inputs), tuple(params.items()))
    )


def extract_custom_call_outputs_shape_dtype(n: torch.fx.Node) -> tuple[Any, Any]:
    """The shapes and the dtypes of what a node of a traced graph gives."""
    found = n.meta.get("val")
    tensors = [found] if isinstance(found, torch.Tensor) else found
    if not tensors or not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
        raise ArgumentError(
            f"custom call {n.target}: its outputs are {found!r}; a custom call of StableHLO gives"
            " tensors alone"
        )
    return [tensor.shape for tensor in tensors], [tensor.dtype for tensor in tensors]


def _placed(a: torch.Tensor, where: str) -> torch.Tensor:
    """A device tensor, which XLA is told to keep there; one of the CPU is where it is."""
    if not isinstance(a, XlaTensor):
        return a.clone()
    attributes = {"_xla_buffer_placement": where}
    return stablehlo_custom_call(  # type: ignore[no-any-return]
        [a], _PLACEMENT, [a.shape], [a.dtype], True, "", 0, attributes
    )


def place_to_host_impl(a: torch.Tensor) -> torch.Tensor:
    """What `place_to_host` records."""
    return _placed(a, "pinned_host")


def place_to_device_impl(a: torch.Tensor) -> torch.Tensor:
    """What `place_to_device` records."""
    return _placed(a, "device")


def like(t: torch.Tensor) -> torch.Tensor:
    """What fake tensors say of both."""
    return torch.empty_like(t)


def to_host_backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    """The gradient, where it is."""
    return grad


def to_device_backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    """The gradient, where it is."""
    return grad


def _operator(name: str, kernel: Kernel, backward: Kernel) -> torch._ops.OpOverload:
    # torch.library.custom_op would read the source of this file whenever torch_xla is imported.
    define(f"{name}(Tensor t) -> Tensor", kernel, meta=like, device=kernel)
    torch.library.register_autograd(f"xla::{name}", backward, lib=LIBRARY)
    return getattr(torch.ops.xla, name).default  # type: ignore[no-any-return]


# A device tensor in the memory of the host, for XLA to bring back when it is needed.
place_to_host = _operator("place_to_host", place_to_host_impl, to_host_backward)
# What `place_to_host` gave, back in the device's memory.
place_to_device = _operator("place_to_device", place_to_device_impl, to_device_backward)
