"""Which form of a convolution and its gradients a CPU computes, by shapes alone; `conv.py` asks.

They stay XLA's own but for what is named here. Each rule has the measurements that it comes from,
in milliseconds where it says so, else: processor time of one core of an AMD EPYC with AVX2,
best of 8 to 15 by turns with eager torch 2.13, as multiples of eager's (2026-11-25, jaxlib 0.10.2;
`scripts/bench_convolutions.py`). `native` is XLA's own convolution, compiled without YNNPACK's;
shapes are samples x channels in x positions, kernel and strides, channels out.

Not used, as they were slower everywhere or not exact: sums of one product per tap, Winograd's
F(2x2, 3x3) (1.2 to 7 times native), kernels widened by zeros over several columns (0.7 times native
for few output channels, but an infinite input would reach columns that do not see it).

What a form gains alone it may lose in a program: with AVX-512 the value of few channels by columns
is twice as fast alone (32 x 3 x 32^2, 3^2, 64: 4.1 ms, 2.4) and their weight gradient too (13.5,
5.3), but steps of twelve nets with both took 0.88 to 1.12 of the time before.
"""

import math
from collections.abc import Sequence

from torch_xdist.ops import forms
from torch_xdist.ops.conv_forms import MOST_COLUMNS, MOST_TAPS, Window
from torch_xdist.ops.conv_turned import LARGE

# Below so many input channels a product over columns is faster than XLA's own input gradient, which
# has them as the narrow side of its product:
#   64 x 1 x 28^2, 5^2, 10: native 2.04, by columns 0.31    16 x 8 x 32^2, 3^2, 8: 1.86, 1.01
#   32 x 3 x 32^2, 3^2, 64: 2.07, 0.67                      64 x 10 x 12^2, 5^2, 20: 3.05, 1.70
#   32 x 3 x 32^2, 7^2 / 2, 64: 0.92, 0.72                  16 x 12 x 16^2, 5^2, 12: 1.61, 1.34
#   16 x 3 x 32^2, 4^2 / 2, 64: 0.55, 0.34                  32 x 16 x 32^2, 3^2, 16: 1.56, 1.57
_FEW_CHANNELS = 16
# Up to so many samples the weight gradient is a product over columns: XLA's own has the samples as
# the channels of a convolution under a kernel as large as the gradient.
#   1 x 64 x 32^2, 3^2, 64: native 2.83, by columns 0.85    2 x 64 x 32^2, 3^2 / 2, 128: 1.87, 0.83
#   2 x 64 x 32^2, 3^2, 64: 2.06, 1.13                      4 x 64 x 32^2, 3^2, 64: 1.43, 1.27
#   1 x 256 x 14^2, 3^2, 256: 1.51, 0.84                    6 x 64 x 32^2, 3^2, 64: 1.39, 1.34
#   1 x 3 x 64^2, 3^2, 32: 1.86, 0.63                       8 x 64 x 28^2, 3^2, 64: 0.97, 1.64
# In ms on 2 cores of a Xeon with AVX-512 (2026-11-28), where columns compile longer, too:
#   1 x 64 x 56^2, 3^2, 64: 3.57, 2.45                      4 x 64 x 32^2, 3^2, 64: 2.68, 3.22
#   2 x 64 x 32^2, 3^2, 64: 1.74, 1.79                      4 x 16 x 64^2, 3^2, 16: 1.74, 2.41
_FEW_SAMPLES = 3
# Sums of more shares (`conv_shifts.py`) are slower than XLA's own convolutions of each group:
#   8 x 64 x 28^2, 3^2, 8 groups, 72 shares: native 1.03 ms, by shifts 0.94
#   8 x 64 x 512, 5, 4 groups, 80 shares of 32 channels out each: native 0.62, by shifts 2.1
_MOST_SHARES = 72
# Of one group the value is by shifts from so few channels to so few, without strides:
#   64 x 3 x 32^2, 5^2, 6: native 2.6 ms, by shifts 0.68    16 x 4 x 64^2, 3^2, 16: 1.4, 0.59
#   64 x 3 x 32^2, 5^2, 16: 2.1, 1.3                        32 x 6 x 28^2, 3^2, 16: 0.89, 0.65
# To more it is as much faster alone (16 x 3 x 32^2, 3^2, 32: 0.48, 0.33), but not in whole nets:
# steps of one from 3 channels to 6 took 0.61 and 0.72 of the time, to 8 0.93, to 16 0.96 and 1.00,
# to 32 1.03.
_FEW_IN = 6
_FEW_OUT = 16
_MOST_OF_FEW = 75
# Of more groups and no more shares the weight gradient is by shifts, and with strides the gradient
# by the input, besides those of one channel a group. XLA's own, group by group, takes a tenth of a
# second to compile for each.
#   weight: 4 x 128 x 56^2, 3^2, 32 groups: native 24.3 ms, by shifts 7.0; to compile 1.6, 0.1 s
#   4 x 128 x 56^2, 3^2 / 2, 32: 2.6, 2.1           8 x 96 x 28^2, 3^2, 32: 1.8, 1.6
#   4 x 256 x 28^2, 3^2, 32, 72 shares: 3.9, 8.4    8 x 64 x 28^2, 3^2, 16: 1.1, 1.6
#   input: 4 x 256 x 28^2, 3^2 / 2, 64: 2.1, 1.0; to compile 1.1, 0.15 s
#   4 x 128 x 56^2, 3^2 / 2, 32: 2.4, 2.0           4 x 256 x 56^2, 3^2 / 2, 32, 72 shares: 5.5, 8.9
# One channel each, what each tap gives spread over the input, and by shifts: 8 x 96 x 56^2,
# 3^2 / 2: 2.9, 0.89; 16 x 144 x 16^2, 5^2 / 2: 3.3, 1.0.
_FEW_GROUPS = 16
_FEW_SHARES = 36
# Of one channel each a CPU writes more taps out: XLA's own takes one group after the other. In ms,
# and seconds to compile (2 cores of an EPYC with AVX-512, 2026-11-28), XLA's own and so:
#   8 x 64 x 28^2, 9^2: value 44.7, 1.4; 0.48, 0.08 s         weight 4.0, 8.7; 0.36, 0.13
#   4 x 60 x 8^2, 9^2: 0.49, 0.10; 0.69, 0.10                 0.67, 0.44; 0.25, 0.14
#   2 x 64 x 28^2, 13^2: 26.8, 1.3; 0.89, 0.20                19.7, 5.6; 0.56, 0.55
#   4 x 32 x 28^2, 15^2: 20.0, 1.0; 0.28, 0.20                6.8, 6.6; 0.18, 0.46
#   4 x 3 x 64^2, 11^2: 4.5, 0.25; 0.04, 0.13                 2.0, 1.6; 0.04, 0.25
#   2 x 64 x 28^2, 13^2 / 2: 5.3, 1.1; input 4.0, 10.4; weight 3.3, 1.5
_MOST_TAPS_EACH = 256
# Of groups with so few positions in all samples, all are one product (`conv_grouped.py`). In ms,
# and seconds to compile (2 cores of an EPYC with AVX-512, 2026-11-28), 3^2, in 32 groups, one by
# one and together:
#   value: 4 x 512 x 4^2: 0.24, 0.30; 0.32, 0.07 s           4 x 1024 x 2^2: 0.33, 0.31; 0.99, 0.07
#   by the input: 4 x 512 x 4^2: 0.24, 0.18; 0.31, 0.05      4 x 1024 x 2^2: 0.26, 0.18; 0.45, 0.04
#   by the weight: 4 x 512 x 4^2: 0.39, 0.35; 0.99, 0.07     4 x 1024 x 2^2: 0.29, 0.26; 0.84, 0.07
#   16 x 512 x 4^2, 256 positions: 0.61, 0.80; 0.60, 0.55; 0.76, 1.23
_FEW_POSITIONS = 128
# More groups one by one would make the program too long.
MOST_GROUPS = 64


def is_depthwise(w: Sequence[int], window: Window) -> bool:
    """One input channel per group, and few enough taps to write them out; w [o, c, *kernel]."""
    many = window.groups > 1 and forms.chosen().is_host
    is_few = w[1] == 1 and math.prod(w[2:]) <= (_MOST_TAPS_EACH if many else MOST_TAPS)
    return is_few and not forms.chosen().writes_out_taps


def is_by_shifts(w: Sequence[int], window: Window) -> bool:
    """Whether the value is."""
    if not forms.chosen().is_host:
        return is_depthwise(w, window)
    if window.groups > 1:
        return _are_few(w[1:]) or is_depthwise(w, window)
    is_narrow = w[0] <= _FEW_OUT and w[1] <= _FEW_IN and math.prod(w[1:]) <= _MOST_OF_FEW
    return is_depthwise(w, window) or (is_narrow and set(window.stride) == {1})


def is_gradient_by_shifts(w: Sequence[int], window: Window) -> bool:
    """Whether the gradient by the input is."""
    each, on_cpu = w[0] // window.groups, forms.chosen().is_host
    if set(window.stride) == {1}:
        if on_cpu and window.groups > 1 and _are_few((each, *w[2:])):
            return True
        return each == 1 and is_depthwise(w, window)
    if not (on_cpu and _is_plain(window)) or any(s > k for s, k in zip(window.stride, w[2:])):
        return False
    is_few = window.groups > 1 and is_depthwise(w, window) and _are_few((each, *w[2:]))
    return is_few or _is_small((each, *w[2:]), window)


def is_weight_gradient_by_shifts(w: Sequence[int], window: Window) -> bool:
    """Whether the gradient by the weight is."""
    if not forms.chosen().is_host or window.groups == 1:
        return False
    return is_depthwise(w, window) or _is_small(w[1:], window)


def is_one_product(result: Sequence[int], w: Sequence[int], window: Window) -> bool:
    """Whether groups that nothing above is for are computed at once; result [n, o, *out]."""
    positions = result[0] * math.prod(result[2:])
    columns = window.groups * math.prod(w[1:]) * positions
    if not forms.chosen().is_host or window.groups == 1 or not _has_columns(columns, w[2:]):
        return False
    return positions <= _FEW_POSITIONS or window.groups > MOST_GROUPS


def _is_small(shares: Sequence[int], window: Window) -> bool:
    return window.groups > _FEW_GROUPS and math.prod(shares) <= _FEW_SHARES


def _are_few(shares: Sequence[int]) -> bool:
    """The taps of a kernel, or of all channels of a group."""
    return math.prod(shares) <= _MOST_SHARES


def input_gradient(grad: Sequence[int], w: Sequence[int], window: Window) -> str:
    """By shapes [n, o, *out] and [o, c, *kernel]: a name in `conv.INPUT_GRADIENTS`."""
    (n, _, *out), (_, c, *kernel) = grad, w
    if window.groups > 1:
        return "native"
    # Where the stride divides the kernel, one convolution computes all phases: 4 x 3 x 112^2,
    # 4^2 / 4, 96: native 0.52, by phases 0.30, by columns 0.78; 16 x 64 x 16^2, 4^2 / 2, 128: 1.14,
    # 1.04, 1.33. Its output channels are those of all phases, which must not be too few either. On
    # two cores with AVX-512 (2026-11-27): 16 x 3 x 32^2, 4^2 / 2, 64: 0.69, 0.91, 0.64; 64 x 4 x
    # 28^2, 4^2 / 2, 16: 0.89, 0.47, 0.90; 16 x 12 x 32^2, 4^2 / 2, 48: 1.71, 0.87, 1.57; 16 x 3 x
    # 48^2, 6^2 / 3, 32: 0.79, 0.34, 1.42. Volumes, in ms: 2 x 16 x 16 x 32^2, 2^3 / 2, 32: native
    # 0.73, by phases 0.42; 2 x 16 x 8 x 28^2, 4^3 / 2, 16: 0.99, 0.61.
    is_strided = set(window.stride) != {1}
    if is_strided and _is_plain(window) and not any(k % s for k, s in zip(kernel, window.stride)):
        is_patches = tuple(kernel) == window.stride
        if is_patches or c * math.prod(window.stride) >= _FEW_CHANNELS:
            return "phases"
    if len(kernel) == 3 or not _has_columns(math.prod(kernel) * c * n * math.prod(out), kernel):
        return "native"
    # XLA exchanges a gradient that is smaller than the kernel with it: 32 x 128 x 4^2, 3^2 / 2,
    # 256: native 12.5, by columns 0.97; 32 x 256 x 2^2, 3^2 / 2, 512: 8.2, 1.42.
    is_exchanged = is_strided and math.prod(out) < math.prod(kernel)
    return "columns" if c < _FEW_CHANNELS or is_exchanged else "native"


def weight_gradient(grad: Sequence[int], w: Sequence[int], window: Window) -> str:
    """By shapes [n, o, *out] and [o, c, *kernel]: a name in `conv.WEIGHT_GRADIENTS`."""
    (n, _, *out), (_, c, *kernel) = grad, w
    if len(kernel) == 3 or window.groups > 1:
        return "native"
    if n <= _FEW_SAMPLES and _has_columns(math.prod(kernel) * c * n * math.prod(out), kernel):
        return "columns"
    return "turned" if is_turned(grad, w, window) else "native"


def is_turned(result: Sequence[int], w: Sequence[int], window: Window) -> bool:
    """Whether a convolution with that result has a weight so large that it is turned around."""
    kernel = math.prod(w[2:])
    is_whole = window.groups == 1 and len(w) < 5 and 1 < kernel <= math.prod(result[2:])
    return forms.chosen().is_host and is_whole and math.prod(w) >= LARGE


def _is_plain(window: Window) -> bool:
    return set(window.dilation) == {1}


def _has_columns(elements: int, kernel: Sequence[int]) -> bool:
    return elements <= MOST_COLUMNS and math.prod(kernel) <= MOST_TAPS
