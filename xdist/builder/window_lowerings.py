"""XLA's operations over windows, over dims and by indices, as functions of JAX arrays."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from torch_xdist.core.programs.jax_internals import select_and_scatter
from torch_xdist.errors import NoLoweringError

Dims = Sequence[int]
Padding = str | Sequence[Sequence[int]]


def known(computation: Any, where: str, names: Mapping[str, Any]) -> Any:
    """What stands for a computation of two scalars that is one operation of its parameters.

    Raises NoLoweringError for any other computation.
    """
    # One that came as an HLO module has no rows to look at.
    rows: Any = computation.key[0] if isinstance(computation.key, tuple) else ()
    if len(rows) == 3 and rows[2][1] in ((0, 1), (1, 0)):
        numbers = [dict(row[2]).get("number", (None, None))[1] for row in rows[:2]]
        is_in_order = [numbers[place] for place in rows[2][1]] == [0, 1]
        if is_in_order and rows[2][0] in names:
            return names[rows[2][0]]
    if len(rows) == 1 and rows[0][2] == (("number", ("int", 1)),) and "second" in names:
        return names["second"]
    raise NoLoweringError(
        f"xla_builder: {where} by another computation than {', '.join(names)} of its two"
        " parameters is not there; use one of them"
    )


def _windows(padding: Padding) -> Any:
    return padding.upper() if isinstance(padding, str) else [tuple(dim) for dim in padding]


def _precision(config: Any) -> Any:
    if config is None or isinstance(config, str):
        return config
    return tuple(str(one).lower() for one in config)


def _conv(
    x: Any,
    kernel: Any,
    *,
    window_strides: Dims,
    padding: Padding = "valid",
    lhs_dilation: Dims | None = None,
    rhs_dilation: Dims | None = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    precision_config: Any = None,
    **places: Any,
) -> Any:
    """A convolution; `places` say which dim is what, as XLA numbers them where it is left out."""
    spatial = tuple(range(2, x.ndim))
    of_input = (
        places.get("input_batch_dimension", 0),
        places.get("input_feature_dimension", 1),
        *places.get("input_spatial_dimensions", spatial),
    )
    of_kernel = (
        places.get("kernel_output_feature_dimension", 0),
        places.get("kernel_input_feature_dimension", 1),
        *places.get("kernel_spatial_dimensions", spatial),
    )
    of_output = (
        places.get("output_batch_dimension", 0),
        places.get("output_feature_dimension", 1),
        *places.get("output_spatial_dimensions", spatial),
    )
    return lax.conv_general_dilated(
        x,
        kernel,
        window_strides,
        _windows(padding),
        lhs_dilation=lhs_dilation,
        rhs_dilation=rhs_dilation,
        dimension_numbers=lax.ConvDimensionNumbers(of_input, of_kernel, of_output),
        feature_group_count=feature_group_count,
        batch_group_count=batch_group_count,
        precision=_precision(precision_config),
    )


def _reduce(x: Any, start: Any, *, computation: Any, dimensions: Dims) -> Any:
    return lax.reduce(x, start, computation.function, tuple(dimensions))


def _reduce_all(x: Any, start: Any, *, computation: Any) -> Any:
    return lax.reduce(x, start, computation.function, tuple(range(x.ndim)))


def _reduce_window(
    x: Any,
    start: Any,
    *,
    computation: Any,
    window_dimensions: Dims,
    window_strides: Dims,
    padding: Padding = "valid",
) -> Any:
    return lax.reduce_window(
        x, start, computation.function, window_dimensions, window_strides, _windows(padding)
    )


def _max_pool(
    x: Any,
    *,
    kernel_size: Dims,
    stride: Dims,
    batch_dimension: int,
    feature_dimension: int,
    spatial_dimensions: Dims,
    padding: Padding = "valid",
) -> Any:
    """Windows over every dim, or over the spatial ones alone."""
    sizes = _over_all(x.ndim, kernel_size, spatial_dimensions)
    strides = _over_all(x.ndim, stride, spatial_dimensions)
    is_float = jnp.issubdtype(x.dtype, jnp.inexact)
    least = jnp.array(-math.inf if is_float else jnp.iinfo(x.dtype).min, x.dtype)
    return lax.reduce_window(x, least, lax.max, sizes, strides, _windows(padding))


def _over_all(ndim: int, sizes: Dims, spatial: Dims) -> tuple[int, ...]:
    if len(sizes) == ndim:
        return tuple(sizes)
    given = dict(zip(spatial, sizes, strict=True))
    return tuple(given.get(dim, 1) for dim in range(ndim))


def _select_and_scatter(
    x: Any,
    source: Any,
    start: Any,
    *,
    window_dimensions: Dims,
    window_strides: Dims,
    select_computation: Any,
    scatter_computation: Any,
    padding: Padding = "valid",
) -> Any:
    windows = _windows(padding)
    if isinstance(windows, str):
        windows = lax.padtype_to_pads(x.shape, window_dimensions, window_strides, windows)
    return select_and_scatter(
        x,
        select_computation.function,
        tuple(window_dimensions),
        tuple(window_strides),
        tuple(windows),
        source,
        start,
        scatter_computation.function,
    )


def _indices_last(indices: Any, index_vector_dim: int) -> Any:
    if index_vector_dim == indices.ndim:
        return indices[..., None]
    return jnp.moveaxis(indices, index_vector_dim, -1)


def _gather(
    x: Any,
    indices: Any,
    *,
    offset_dims: Dims,
    collapsed_slice_dims: Dims,
    start_index_map: Dims,
    index_vector_dim: int,
    slice_sizes: Dims | None = None,
    indices_are_sorted: bool = False,
) -> Any:
    """`slice_sizes` left out: 1 along the collapsed dims, all of the others."""
    sizes = [1 if d in collapsed_slice_dims else n for d, n in enumerate(x.shape)]
    return lax.gather(
        x,
        _indices_last(indices, index_vector_dim),
        lax.GatherDimensionNumbers(
            tuple(offset_dims), tuple(collapsed_slice_dims), tuple(start_index_map)
        ),
        tuple(slice_sizes or sizes),
        indices_are_sorted=indices_are_sorted,
        mode="clip",
    )


_SCATTERS: dict[str, Callable[..., Any]] = {
    "Add": lax.scatter_add,
    "Mul": lax.scatter_mul,
    "Min": lax.scatter_min,
    "Max": lax.scatter_max,
    "second": lax.scatter,
}


def _scatter(
    x: Any,
    indices: Any,
    updates: Any,
    *,
    computation: Any,
    update_window_dims: Dims,
    inserted_window_dims: Dims,
    scatter_dims_to_operand_dims: Dims,
    index_vector_dim: int,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
) -> Any:
    return known(computation, "Scatter", _SCATTERS)(
        x,
        _indices_last(indices, index_vector_dim),
        updates,
        lax.ScatterDimensionNumbers(
            tuple(update_window_dims),
            tuple(inserted_window_dims),
            tuple(scatter_dims_to_operand_dims),
        ),
        indices_are_sorted=indices_are_sorted,
        unique_indices=unique_indices,
        mode="drop",
    )


LOWERINGS: dict[str, Callable[..., Any]] = {
    "Conv": _conv,
    "ConvWithGeneralPadding": _conv,
    "ConvWithGeneralDimensions": _conv,
    "ConvGeneral": _conv,
    "ConvGeneralDilated": _conv,
    "Reduce": _reduce,
    "ReduceAll": _reduce_all,
    "ReduceWindow": _reduce_window,
    "MaxPool": _max_pool,
    "SelectAndScatter": _select_and_scatter,
    "SelectAndScatterWithGeneralPadding": _select_and_scatter,
    "Gather": _gather,
    "Scatter": _scatter,
}
