"""Kinds of numbers that torch's kernels refuse on every device, though XLA would compute something.

A function with real results gives integers none but what is left after the point is cut off, and
complex numbers have no order: XLA would go by their real parts. Those calls the CPU is asked about,
and what it says is raised (`core/record/cpu_only.py`). Bools, and what only moves numbers, are not
in these lists: they come out right.
"""

from collections.abc import Sequence
from typing import Any

from torch_xdist.ops import number_ranges

# By operator, without the namespace; those without an overload are `default`.
_REAL_RESULTS = """
    _adaptive_avg_pool2d _adaptive_avg_pool3d _batch_norm_with_update _ctc_loss _ctc_loss.Tensor
    _histogramdd_bin_edges _histogramdd_from_bin_tensors _log_softmax _native_batch_norm_legit
    _prelu_kernel _softmax _softmax_backward_data _upsample_bilinear2d_aa binary_cross_entropy celu
    cholesky_inverse cholesky_solve elu frac gelu geqrf grid_sampler_2d grid_sampler_3d hardshrink
    hardsigmoid hardswish histc histogram.bin_ct histogram.bins_tensor huber_loss hypot igamma
    igammac leaky_relu lerp.Scalar lerp.Tensor linalg_lstsq log_sigmoid_forward logaddexp logaddexp2
    logcumsumexp mish mse_loss multi_margin_loss multilabel_margin_loss_forward native_batch_norm
    native_group_norm native_layer_norm nextafter nll_loss_forward round.decimals
    rrelu_with_noise silu smooth_l1_loss soft_margin_loss softplus softshrink triangular_solve
    upsample_bicubic2d upsample_bilinear2d upsample_linear1d upsample_trilinear3d
"""
_ORDER = """
    adaptive_max_pool2d adaptive_max_pool3d amax amin aminmax argmax argmin atan2 bucketize.Tensor
    bucketize.Scalar clamp clamp.Tensor clamp_max clamp_max.Tensor clamp_min clamp_min.Tensor
    fractional_max_pool2d fractional_max_pool3d gcd ge.Scalar ge.Tensor gt.Scalar gt.Tensor
    hash_tensor heaviside index_reduce kthvalue lcm le.Scalar le.Tensor lt.Scalar lt.Tensor max
    max_pool2d_with_indices max_pool3d_with_indices median median.dim min mode nanmedian
    nanmedian.dim relu round round.decimals searchsorted.Scalar searchsorted.Tensor
    rrelu_with_noise scatter_reduce.two sign signbit threshold
"""
_REAL_ARGUMENTS = """
    _histogramdd_bin_edges _histogramdd_from_bin_tensors _log_softmax _safe_softmax _softmax
    _softmax_backward_data bernoulli binary_cross_entropy binary_cross_entropy_with_logits celu elu
    erfinv gelu hardshrink histc histogram.bin_ct histogram.bins_tensor huber_loss igamma igammac
    leaky_relu log_sigmoid_forward logit mish mse_loss multi_margin_loss
    multilabel_margin_loss_forward native_batch_norm native_group_norm native_layer_norm
    nll_loss_forward polygamma smooth_l1_loss softplus softshrink special_bessel_j0
    special_bessel_j1 special_bessel_y0 special_bessel_y1 special_entr special_erfcx
    special_hermite_polynomial_h special_hermite_polynomial_he special_laguerre_polynomial_l
    special_legendre_polynomial_p special_spherical_bessel_j0 special_xlog1py xlogy.Tensor
"""


def _overloads(names: str) -> frozenset[str]:
    return frozenset(name if "." in name else f"{name}.default" for name in names.split())


NOT_OF_INTEGERS = _overloads(_REAL_RESULTS)
NOT_OF_FLOATS = _overloads("gcd lcm")
NOT_OF_COMPLEX = _overloads(_ORDER) | _overloads(_REAL_ARGUMENTS)


def may_be_refused(name: str, args: Sequence[Any]) -> bool:
    """Whether torch may have no kernel for numbers of this kind, on no device."""
    dtypes = [x.dtype for x in args if hasattr(x, "dtype")]
    if name in NOT_OF_COMPLEX and any(dtype.is_complex for dtype in dtypes):
        return True
    if name in NOT_OF_FLOATS and any(dtype.is_floating_point for dtype in dtypes):
        return True
    return name in NOT_OF_INTEGERS and number_ranges.is_exact(dtypes[0])


def cast_of(name: str) -> str:
    """The cast after which torch has a kernel for numbers that it refuses."""
    return ".long()" if name in NOT_OF_FLOATS else ".float()"
