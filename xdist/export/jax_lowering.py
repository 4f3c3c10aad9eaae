"""Operations of StableHLO that JAX has no function for, as rules of its lowering."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.interpreters import mlir
from jax.interpreters.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from torch_xdist.core.programs.jax_internals import sizes_at_run_time, type_in


def broadcast_at_run_time(ctx: Any, x: Any, *, shape: tuple[Any, ...]) -> Sequence[Any]:
    """`stablehlo.dynamic_broadcast_in_dim` to a shape, also where nothing changes."""
    (out,) = ctx.avals_out
    rank = len(ctx.avals_in[0].shape)
    dims = mlir.dense_int_array([*range(len(shape) - rank, len(shape))])
    sizes = sizes_at_run_time(ctx, shape)
    type_ = type_in(ctx, out)
    return stablehlo.DynamicBroadcastInDimOp(type_, x, sizes, dims).results


def custom_call(
    ctx: Any,
    *operands: Any,
    target: str,
    has_side_effect: bool,
    backend_config: str,
    api_version: int,
    frontend_attributes: Mapping[str, str],
) -> Sequence[Any]:
    """`stablehlo.custom_call`; several results come as a tuple, as torch_xla's do."""
    types = [type_in(ctx, out) for out in ctx.avals_out]
    is_tuple = len(types) > 1
    call = stablehlo.CustomCallOp(
        [ir.TupleType.get_tuple(types)] if is_tuple else types,
        list(operands),
        call_target_name=ir.StringAttr.get(target),
        has_side_effect=ir.BoolAttr.get(has_side_effect) if has_side_effect else None,
        backend_config=ir.StringAttr.get(backend_config) if backend_config else None,
        api_version=mlir.i32_attr(api_version) if api_version else None,
    )
    if frontend_attributes:
        named: Any = {name: ir.StringAttr.get(value) for name, value in frontend_attributes.items()}
        call.operation.attributes["mhlo.frontend_attributes"] = ir.DictAttr.get(named)
    if not is_tuple:
        return call.results  # type: ignore[no-any-return]
    return [
        stablehlo.GetTupleElementOp(call.results[0], mlir.i32_attr(i)).result
        for i in range(len(types))
    ]


def shaped(shape: Sequence[int], dtype: Any) -> Any:
    """An abstract array."""
    return jax.core.ShapedArray(tuple(shape), dtype)
