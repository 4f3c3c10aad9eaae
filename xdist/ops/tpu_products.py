"""Products and convolutions of 64-bit integers for TPUs, whose compiler has none.

libtpu makes two arrays of 32 bits of each of 64, and refuses a matrix product or a convolution of
them. Elementwise products and sums it has, so these are written as such: exact, as integers are,
and as slow as products outside the matrix unit are. JAX's own forms stay for all other dtypes.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

try:
    from jax._src.interpreters import mlir
    from jax._src.lax.convolution import conv_general_dilated_p
    from jax._src.lax.lax import dot_general_p

    _rules: dict[Any, Any] = {
        primitive: mlir._platform_specific_lowerings["tpu"].get(primitive)
        or mlir._lowerings[primitive]
        for primitive in (dot_general_p, conv_general_dilated_p)
    }
except (ImportError, AttributeError, KeyError):
    _rules = {}

_WIDE = (np.dtype(np.int64), np.dtype(np.uint64))
_Dims = Sequence[int]


def product(lhs: jax.Array, rhs: jax.Array, *, dimension_numbers: Any, **_: Any) -> jax.Array:
    """`lax.dot_general` by elementwise products and a sum of them."""
    (lhs_contracted, rhs_contracted), (lhs_batch, rhs_batch) = dimension_numbers
    left, lhs_free = _batch_free_contracted(lhs, lhs_batch, lhs_contracted)
    right, rhs_free = _batch_free_contracted(rhs, rhs_batch, rhs_contracted)
    found = (left[:, :, None] * right[:, None]).sum(-1)
    return found.reshape(*(lhs.shape[d] for d in lhs_batch), *lhs_free, *rhs_free)


def _batch_free_contracted(
    x: jax.Array, batch: _Dims, contracted: _Dims
) -> tuple[jax.Array, list[int]]:
    """([b, m, k], the sizes that make up m)."""
    free = [d for d in range(x.ndim) if d not in {*batch, *contracted}]
    sizes = [x.shape[d] for d in free]
    count = math.prod(x.shape[d] for d in batch)
    turned = x.transpose([*batch, *free, *contracted])
    return turned.reshape(count, math.prod(sizes), math.prod(x.shape[d] for d in contracted)), sizes


def convolution(
    lhs: jax.Array,
    rhs: jax.Array,
    *,
    window_strides: _Dims,
    padding: Sequence[tuple[int, int]],
    lhs_dilation: _Dims,
    rhs_dilation: _Dims,
    dimension_numbers: Any,
    feature_group_count: int,
    **_: Any,
) -> jax.Array:
    """`lax.conv_general_dilated` as a sum over the kernel's places, for one group of batches."""
    lhs_spec, rhs_spec, out_spec = dimension_numbers
    images, kernel = lhs.transpose(lhs_spec), rhs.transpose(rhs_spec)
    zero = jnp.zeros((), images.dtype)
    edges = [(low, high, wide - 1) for (low, high), wide in zip(padding, lhs_dilation)]
    images = lax.pad(images, zero, [(0, 0, 0), (0, 0, 0), *edges])
    places = kernel.shape[2:]
    reach = [(size - 1) * wide for size, wide in zip(places, rhs_dilation)]
    outs = [
        (size - far - 1) // stride + 1
        for size, far, stride in zip(images.shape[2:], reach, window_strides)
    ]
    groups, per_group = feature_group_count, kernel.shape[1]
    # [g, outputs of a group, inputs of a group, *places]
    kernel = kernel.reshape(groups, kernel.shape[0] // groups, per_group, *places)
    total = jnp.zeros((images.shape[0], *kernel.shape[:2], *outs), images.dtype)
    for tap in itertools.product(*map(range, places)) if total.size else ():
        first = [t * wide for t, wide in zip(tap, rhs_dilation)]
        last = [a + (n - 1) * stride + 1 for a, n, stride in zip(first, outs, window_strides)]
        seen = lax.slice(
            images, [0, 0, *first], [*images.shape[:2], *last], [1, 1, *window_strides]
        ).reshape(images.shape[0], groups, 1, per_group, *outs)
        weight = kernel[(..., *tap)].reshape(*kernel.shape[:3], *(1,) * len(outs))
        total += (seen * weight).sum(3)
    found = total.reshape(images.shape[0], groups * kernel.shape[1], *outs)
    return found.transpose(np.argsort(out_spec))


def _for_wide(primitive: Any, form: Callable[..., jax.Array]) -> Callable[..., Any]:
    ordinary = getattr(_rules[primitive], "rule", _rules[primitive])
    by_sums = mlir.lower_fun(form, multiple_results=False)

    def rule(ctx: Any, *operands: Any, **named: Any) -> Any:
        is_wide = all(aval.dtype in _WIDE for aval in ctx.avals_in)
        # Batches by groups are of a gradient, which integers have none of.
        if not is_wide or named.get("batch_group_count", 1) != 1:
            return ordinary(ctx, *operands, **named)
        return by_sums(ctx, *operands, **named)

    return rule


if _rules:
    for _primitive, _form in ((dot_general_p, product), (conv_general_dilated_p, convolution)):
        mlir.register_lowering(_primitive, _for_wide(_primitive, _form), platform="tpu")
