"""The forms a direct convolution is computed in, and their gradients; `conv.py` chooses one.

Arrays are x [n, c, *in], w [o, c / groups, *kernel], results [n, o, *out].
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_xdist.ops import exactness, forms
from torch_xdist.ops.operands import wide

# Columns of fewer elements are gathered. In ms, and seconds to compile the gradient by the weight
# with (2 cores of a Xeon, 2026-11-30), slice by slice, gathered, and in a loop:
#   1 x 64 x 32^2, 3^2, 64, 590,000: 4.5, 3.6, 3.9; 0.32, 0.15, 0.29 s
#   1 x 256 x 14^2, 3^2, 256, 452,000: 8.5, 8.6, 7.9; 0.25, 0.16, 0.24
#   2 x 3 x 128^2, 7^2 / 2, 32, 1,204,000: 8.6, 8.7, 7.9; 1.2, 0.34, 0.41
#   3 x 32 x 56^2, 5^2, 64, 7,526,000: 25.8, 32.2, 25.1; 0.40, 0.20, 0.26
_MOST_GATHERED = 1 << 20
# Above this many taps a convolution is left to XLA: each tap is an operand of its own.
MOST_TAPS = 64
# Columns, which hold what each tap sees at each position, of more elements are not written out.
MOST_COLUMNS = 2**24
_KERNEL = {1: "H", 2: "HW", 3: "DHW"}


@dataclass(frozen=True, slots=True)
class Window:
    """How the kernel walks: one number per spatial dimension, and the number of groups.

    `high` is the padding at the end of each dimension; negative where a transposed convolution
    has more output padding than padding.
    """

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    high: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    def one_group(self) -> "Window":
        return replace(self, groups=1)


def native(
    x: jax.Array,
    w: jax.Array,
    window: Window,
    accumulate: jnp.dtype | None = None,
    weight: str = "OI*",
) -> jax.Array:
    """XLA's own convolution; `weight` says where w has its channels, `*` being the kernel.

    Volumes and results smaller than the kernel are left to products, for which w is "OI*".
    """
    rank = len(window.stride)
    if weight != "OI*":
        return _convolved(x, w, window, accumulate, weight.replace("*", _KERNEL[rank]))
    if len(window.stride) == 3 and window.groups == 1:
        return _by_planes(x, w, window, accumulate)
    if window.groups == 1 and _is_product(x, w, window):
        return _by_taps(x, w, window, accumulate)
    return _convolved(x, w, window, accumulate, "OI" + _KERNEL[rank])


def _convolved(
    x: jax.Array, w: jax.Array, window: Window, accumulate: jnp.dtype | None, weight: str
) -> jax.Array:
    channels_first = "NC" + _KERNEL[len(window.stride)]
    return lax.conv_general_dilated(
        x,
        w,
        window.stride,
        list(zip(window.padding, window.high)),
        rhs_dilation=window.dilation,
        dimension_numbers=(channels_first, weight, channels_first),
        feature_group_count=window.groups,
        precision=exactness.of_convolutions(),
        preferred_element_type=accumulate,
    )


def has_no_kernel(dtype: jnp.dtype) -> bool:
    """Whether XLA has a plain loop alone for convolutions of a dtype; then products are better.

    In ms, by that loop, as products, and eager torch's, of float64 (2 cores of an EPYC with
    AVX-512, 2026-11-28): 2 x 256 x 28^2, 3^2, 256: value 1158, 28, 22; 8 x 64 x 28^2, 3^2, 64:
    value 92, 25, 14, input 91, 6.3, 5.1, weight 135, 27, 17; 32 x 16 x 32^2, 3^2, 16: 23, 31, 10;
    26, 14, 3.6; 42, 29, 18.
    """
    return forms.chosen().is_host and dtype == jnp.float64


def _is_product(x: jax.Array, w: jax.Array, window: Window) -> bool:
    kernel, sizes = math.prod(w.shape[2:]), math.prod(x.shape[2:])
    if not sizes or kernel > MOST_TAPS:
        return False
    positions = math.prod(out_sizes(x.shape[2:], w.shape[2:], window))
    is_small = kernel * x.shape[1] * x.shape[0] * positions <= MOST_COLUMNS
    return sizes < kernel or (has_no_kernel(x.dtype) and is_small)


def transpose_of(
    linear: Callable[[jax.Array], jax.Array], grad: jax.Array, shape: Sequence[int]
) -> jax.Array:
    """The transpose of a linear function of one array of `shape`, at `grad`."""
    return jax.linear_transpose(linear, jax.ShapeDtypeStruct(tuple(shape), grad.dtype))(grad)[0]


def _by_taps(x: jax.Array, w: jax.Array, window: Window, accumulate: jnp.dtype | None) -> jax.Array:
    """A convolution as one product over channels and taps, as for kernels larger than the input.

    XLA exchanges such an input with its kernel, and the convolution it makes of them takes some 50
    times as long on CPUs (512 channels of 2 x 2 under 3 x 3: 294 ms, this form 6).
    """
    out = out_sizes(x.shape[2:], w.shape[2:], window)
    x = padded(x, window.padding, window.high)
    seen = jnp.stack([part for _, part in taps(x, w.shape[2:], out, window)], 2)
    made = lax.dot_general(
        w.reshape(w.shape[0], -1),
        seen.reshape(x.shape[0], -1, math.prod(out)),
        (((1,), (1,)), ((), ())),
        preferred_element_type=accumulate,
    )
    return jnp.moveaxis(made, 1, 0).reshape(x.shape[0], -1, *out)


def _by_planes(
    x: jax.Array, w: jax.Array, window: Window, accumulate: jnp.dtype | None
) -> jax.Array:
    """A convolution of volumes as one of planes, whose channels are those of every depth it sees.

    XLA's own convolution of volumes takes 4 to 7 times as long on CPUs, in each direction.
    """
    n, _, _, *sizes = x.shape
    out = out_sizes(x.shape[2:], w.shape[2:], window)[0]
    x = padded(x, (window.padding[0], 0, 0), (window.high[0], 0, 0))
    planes = [
        lax.slice_in_dim(x, a, a + (out - 1) * window.stride[0] + 1, window.stride[0], 2)
        for a in range(0, w.shape[2] * window.dilation[0], window.dilation[0])
    ]
    seen = jnp.stack(planes, 2).transpose(0, 3, 1, 2, 4, 5).reshape(n * out, -1, *sizes)
    flat = w.reshape(w.shape[0], -1, *w.shape[3:])
    rest = Window(
        window.stride[1:], window.padding[1:], window.high[1:], window.dilation[1:], groups=1
    )
    made = native(seen, flat, rest, accumulate)
    return jnp.moveaxis(made.reshape(n, out, *made.shape[1:]), 1, 2)


def pointwise(
    x: jax.Array, w: jax.Array, window: Window, accumulate: jnp.dtype | None = None
) -> jax.Array:
    kernel, seen = w.reshape(w.shape[:2]), _strided(x, window)
    return jnp.einsum("nc...,oc->no...", seen, kernel, preferred_element_type=accumulate)


def pointwise_weight_gradient(
    grad: jax.Array, x: jax.Array, shape: Sequence[int], window: Window
) -> jax.Array:
    # [n, o, p] by [n, c, p] -> [o, c]
    grad = grad.reshape(*grad.shape[:2], -1)
    x = _strided(x, window).reshape(grad.shape[0], x.shape[1], -1)
    rows, columns, positions = grad.shape[1], x.shape[1], grad.shape[2]
    if rows * columns > positions * (rows + columns):
        # A product per sample would be larger than what it is made of: 64 of 1024 by 1024 channels
        # at 14 x 14 positions take 1.24 s of processor time and a sum, this form 0.37.
        dims = (((0, 2), (0, 2)), ((), ()))
        product = lax.dot_general(grad, x, dims, preferred_element_type=wide(x.dtype))
        return product.astype(grad.dtype).reshape(shape)
    # One matmul per sample and a sum: contracting samples and positions at once would make XLA
    # copy both operands into another order first.
    product = jnp.einsum("nop,ncp->noc", grad, x, preferred_element_type=wide(x.dtype))
    return product.sum(0).astype(grad.dtype).reshape(shape)


def _strided(x: jax.Array, window: Window) -> jax.Array:
    return lax.slice(x, (0,) * x.ndim, x.shape, (1, 1, *window.stride))


def padded(x: jax.Array, low: Sequence[int], high: Sequence[int]) -> jax.Array:
    """`x` [n, c, *sizes] grown, or cropped where a number is negative."""
    config = [(0, 0, 0), (0, 0, 0), *((a, b, 0) for a, b in zip(low, high))]
    return lax.pad(x, jnp.zeros((), x.dtype), config)


def taps(
    x: jax.Array, kernel: Sequence[int], out: Sequence[int], window: Window
) -> Iterator[tuple[tuple[int, ...], jax.Array]]:
    """What each position of the kernel sees of the padded `x`: [n, c, *out]."""
    for tap in itertools.product(*map(range, kernel)):
        start = [t * d for t, d in zip(tap, window.dilation)]
        limit = [a + (n - 1) * s + 1 for a, n, s in zip(start, out, window.stride)]
        yield tap, lax.slice(x, (0, 0, *start), (*x.shape[:2], *limit), (1, 1, *window.stride))


def columns_of(
    x: jax.Array, kernel: Sequence[int], out: Sequence[int], window: Window, at: int
) -> jax.Array:
    """What all positions of the kernel see of the padded `x` [..., *in], as one array.

    A slice for each, and what stacks them, would be kernels of their own to compile. A gather is
    the quickest to compile, a loop to run.

    Returns [..., *out], with a dim of the kernel's positions at the place `at`.
    """
    first = x.ndim - len(out)
    elements = math.prod((*x.shape[:first], *kernel, *out))
    columns = _gathered if elements <= _MOST_GATHERED else _collected
    return columns(x, kernel, out, window, at)


def _gathered(
    x: jax.Array, kernel: Sequence[int], out: Sequence[int], window: Window, at: int
) -> jax.Array:
    first = x.ndim - len(out)
    places = [*itertools.product(*map(range, kernel))]
    starts = np.array(places, np.int32) * np.array(window.dilation, np.int32)
    dims = lax.GatherDimensionNumbers(
        offset_dims=tuple(dim for dim in range(x.ndim + 1) if dim != at),
        collapsed_slice_dims=(),
        start_index_map=tuple(range(first, x.ndim)),
    )
    sizes = (*x.shape[:first], *_spans(out, window))
    mode = lax.GatherScatterMode.PROMISE_IN_BOUNDS
    found = lax.gather(x, starts, dims, sizes, mode=mode)
    return lax.slice(found, (0,) * found.ndim, found.shape, (1,) * (first + 1) + window.stride)


def _collected(
    x: jax.Array, kernel: Sequence[int], out: Sequence[int], window: Window, at: int
) -> jax.Array:
    first, steps = x.ndim - len(out), window.stride
    sizes = (*x.shape[:first], *_spans(out, window))

    def collect(tap: jax.Array, found: jax.Array) -> jax.Array:
        zero, starts, left = jnp.zeros((), tap.dtype), [], tap
        for size, dilation in zip(reversed(kernel), reversed(window.dilation)):
            starts.insert(0, left % size * dilation)
            left = left // size
        part = lax.dynamic_slice(x, [*[zero] * first, *starts], sizes)
        part = lax.slice(part, (0,) * x.ndim, part.shape, (1,) * first + steps)
        where = [tap if dim == at else zero for dim in range(found.ndim)]
        return lax.dynamic_update_slice(found, jnp.expand_dims(part, at), where)

    shape = [*x.shape[:first], *out]
    shape.insert(at, math.prod(kernel))
    return lax.fori_loop(0, math.prod(kernel), collect, jnp.zeros(shape, x.dtype))


def _spans(out: Sequence[int], window: Window) -> list[int]:
    """How far apart the first and the last position lie that a tap sees, with both."""
    return [(n - 1) * s + 1 for n, s in zip(out, window.stride)]


def out_sizes(sizes: Sequence[int], kernel: Sequence[int], window: Window) -> list[int]:
    return [
        (n + p + h - d * (k - 1) - 1) // s + 1
        for n, k, s, p, h, d in zip(
            sizes, kernel, window.stride, window.padding, window.high, window.dilation
        )
    ]


def added(parts: Sequence[jax.Array]) -> jax.Array:
    """The sum, in pairs: one after the other rounds several times worse over 64 taps."""
    while len(parts) > 1:
        pairs = itertools.zip_longest(parts[::2], parts[1::2])
        parts = [a if b is None else a + b for a, b in pairs]
    return parts[0]


def placed(
    grad: jax.Array, tap: Sequence[int], reached: Sequence[int], window: Window
) -> jax.Array:
    """`grad` [n, c, *out] at the positions of an input of `reached` sizes that `tap` saw."""
    config = [(0, 0, 0), (0, 0, 0)]
    for size, out, t, s, d in zip(reached, grad.shape[2:], tap, window.stride, window.dilation):
        config.append((t * d, size - t * d - (out - 1) * s - 1, s - 1))
    return lax.pad(grad, jnp.zeros((), grad.dtype), config)
