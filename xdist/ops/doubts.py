"""Calls that CPU torch may refuse though its meta kernels let them pass, by their arguments.

A rule is a predicate over the positional arguments, with meta tensors in the places of tensors. It
only says that the CPU is to be asked: what is right, and in which words, the CPU says.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_xdist.ops import number_ranges

Rule = Callable[..., bool]
MASKS = (torch.bool, torch.uint8)
_LOW = (torch.float16, torch.bfloat16)
_WIDE = {torch.float32}
_COMPLEX = (torch.complex32, torch.complex64, torch.complex128)


def _differ(*places: int) -> Rule:
    """The operands in these places have several dtypes."""

    def differ(*args: Any) -> bool:
        given = [args[place] for place in places if place < len(args)]
        return len({x.dtype for x in given if x is not None}) > 1

    return differ


def _mixed(*places: int) -> Rule:
    """Like `_differ`, but for what mixed precision has beside low precision: float32."""
    differ = _differ(*places)

    def mixed(*args: Any) -> bool:
        first, *rest = (args[place] for place in places)
        dtypes = {x.dtype for x in rest if x is not None}
        return differ(*args) and not (first.dtype in _LOW and dtypes == _WIDE)

    return mixed


def _of(*dtypes: torch.dtype) -> Rule:
    """An operand has one of these dtypes."""
    return lambda *args: any(getattr(x, "dtype", None) in dtypes for x in args)


def _bools_among(tensors: Sequence[torch.Tensor], *_: Any) -> bool:
    return any(tensor.dtype == torch.bool for tensor in tensors)


def _not_long(place: int) -> Rule:
    return lambda *args: args[place].dtype != torch.int64


def _any(*rules: Rule) -> Rule:
    return lambda *args: any(rule(*args) for rule in rules)


def _unlike(*args: Any) -> bool:
    """The first two operands differ in shape or dtype."""
    return bool(args[0].shape != args[1].shape or args[0].dtype != args[1].dtype)


def _negative_of_result(slope: int, flag: int) -> Rule:
    """A gradient that goes by the signs of the result (an in-place form's) for a negative slope."""
    return lambda *args: bool(args[flag]) and args[slope] < 0


def _out_of_range(self: torch.Tensor, dim: int = -1, *_: Any) -> bool:
    return not -max(self.dim(), 1) <= dim < max(self.dim(), 1)


def _other_rows(self: torch.Tensor, dim: int, index: torch.Tensor, source: Any, *_: Any) -> bool:
    """The rows of the source are not as many as the indices, or of another shape."""
    if index.dim() > 1 or self.dim() != source.dim() or not self.dim() or _out_of_range(self, dim):
        return True
    shapes = [list(x.shape) for x in (self, source)]
    sizes = [shape.pop(dim) for shape in shapes]
    return shapes[0] != shapes[1] or sizes[1] != index.numel()


def _rows_of_another_dtype(*args: Any) -> bool:
    return _differ(0, 3)(*args) and not (_not_long(2)(*args) or _other_rows(*args))


def _odd_convolution(*args: Any) -> bool:
    """Paddings that are negative or too large, or a bias without a number for each channel."""
    _, weight, bias, stride, padding, dilation, transposed, output_padding, groups = args
    made = weight.shape[1] * groups if transposed else weight.shape[0]
    most = [max(pair) for pair in zip(stride, dilation, strict=False)]
    return (
        any(size < 0 for size in (*padding, *output_padding))
        or any(size >= limit for size, limit in zip(output_padding, most, strict=False) if size)
        or (bias is not None and bias.shape != (made,))
    )


def _odd_batch_norm(x: torch.Tensor, *rest: Any) -> bool:
    """Of several dtypes, or with no vectors beside it.

    Vectors of other sizes are not asked about: the CPU reads past their ends.
    """
    given = [part for part in rest[:4] if part is not None]
    if any(part.dim() != 1 for part in given):
        return True
    if any(part.shape != x.shape[1:2] for part in given):
        return False
    # Parameters and statistics may each be of float32 (FSDP leaves buffers as they are).
    return any(_mixed(0, *pair)(x, *rest) for pair in ((1, 2), (3, 4)))


def _odd_lengths(log_probs: torch.Tensor, _: Any, *lengths: Any) -> bool:
    """They are not as many as the sequences, or no whole numbers."""
    batch = log_probs.shape[1] if log_probs.dim() > 2 else 1
    return any(part.numel() != batch or not _is_exact(part) for part in lengths[:2])


def _odd_index(self: torch.Tensor, dim: int, index: torch.Tensor) -> bool:
    if _out_of_range(self, dim) or not _is_exact(index):
        return True
    return index.dim() > 1 or (not self.dim() and index.numel() > 1)


def _no_slice(slice_of: Callable[..., torch.Tensor]) -> Rule:
    """The source is no slice of the tensor that it is written to."""
    return lambda self, src, *where: bool(slice_of(self, *where).shape != src.shape)


def _takes_floats(self: torch.Tensor, count: int, *_: Any) -> bool:
    return not self.dtype.is_floating_point or count < 1


def _unfit_masks(self: torch.Tensor, indices: Any) -> bool:
    """A mask has not the shape of the dims it stands for."""
    dim = 0
    for index in indices:
        is_mask = index is not None and index.dtype in MASKS
        end = dim + (index.dim() if is_mask else 1)
        if is_mask and index.shape != self.shape[dim:end]:
            return True
        dim = end
    return False


def _unfit_values(self: torch.Tensor, indices: Any, values: torch.Tensor, *_: Any) -> bool:
    """The values do not broadcast to what indices that are no masks select."""
    if any(i is not None and i.dtype in MASKS for i in indices):
        return _unfit_masks(self, indices)
    try:
        shape = torch.ops.aten.index.Tensor(self, indices).shape
        return torch.broadcast_shapes(shape, values.shape) != shape
    except (RuntimeError, IndexError):
        return True


def _is_exact(self: torch.Tensor, *_: Any) -> bool:
    return number_ranges.is_exact(self.dtype)


def _inexact_index(*places: int) -> Rule:
    """What says where to read or write are no whole numbers."""

    def inexact(*args: Any) -> bool:
        given = [args[place] for place in places]
        flat = [i for part in given for i in (part if isinstance(part, list | tuple) else [part])]
        return any(i is not None and not _is_exact(i) for i in flat)

    return inexact


def _odd_bag(*args: Any) -> bool:
    """Weights of another dtype, or offsets of several dims."""
    return _differ(0, 6)(*args) or args[2].dim() != 1


def _beyond(dtype: torch.dtype, *numbers: float | None) -> bool:
    """A number is none of this dtype, and would become another one in it."""
    if dtype.is_complex:
        return True
    if dtype == torch.bool:
        return any(number is not None and not 0 <= number <= 1 for number in numbers)
    if dtype.is_floating_point:
        # Above these not each whole number is one of the dtype.
        least, most = torch.finfo(dtype).min, min(2 / torch.finfo(dtype).eps, 2.0**63)
    else:
        least, most = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    return any(number is not None and not least <= number <= most for number in numbers)


def _odd_bounds(self: torch.Tensor, low: int, high: int | None = None, *_: Any) -> bool:
    return _beyond(self.dtype, low, None if high is None else high - 1)


def _odd_uniform(self: torch.Tensor, low: float = 0.0, high: float = 1.0, *_: Any) -> bool:
    most = torch.finfo(self.dtype).max if self.dtype.is_floating_point else 0.0
    return not (-most <= low <= high <= most and high - low <= most)


_TWO = _differ(0, 1)
_WEIGHTED = _any(_TWO, _differ(0, 2))
_WRITTEN = _any(_differ(0, 2), _inexact_index(1), _unfit_values)
_ROWS = _any(_differ(0, 3), _not_long(2), _other_rows)
_EXTREME = _of(*_COMPLEX)

# By operator, without the namespace.
RULES: dict[str, Rule] = {
    "_foreach_sub.List": _bools_among,
    "_foreach_sub.Scalar": _bools_among,
    "_foreach_sub.ScalarList": _bools_among,
    "_batch_norm_with_update_functional.default": _odd_batch_norm,
    "_cdist_forward.default": _TWO,
    "_ctc_loss.Tensor": _odd_lengths,
    "_embedding_bag.default": _odd_bag,
    "_embedding_bag_forward_only.default": _odd_bag,
    "_log_softmax_backward_data.default": _unlike,
    "_native_batch_norm_legit_functional.default": _odd_batch_norm,
    "_native_batch_norm_legit_no_training.default": _odd_batch_norm,
    "_softmax_backward_data.default": _unlike,
    "_unsafe_index_put.default": _WRITTEN,
    "add.Scalar": _of(torch.bool),
    "add.Tensor": _of(torch.bool),
    "addbmm.default": _differ(0, 1, 2),
    "addmm.default": _differ(0, 1, 2),
    "addmv.default": _differ(0, 1, 2),
    "addr.default": _differ(0, 1, 2),
    "baddbmm.default": _differ(0, 1, 2),
    "bernoulli.p": lambda self, p=0.5, *_: not 0 <= p <= 1,
    "binary_cross_entropy.default": _WEIGHTED,
    "complex.default": _TWO,
    "convolution.default": _any(_differ(0, 1, 2), _odd_convolution),
    "cummax.default": _out_of_range,
    "cummin.default": _out_of_range,
    "dist.default": _of(torch.bool),
    "diagonal_scatter.default": _no_slice(torch.diagonal),
    "elu_backward.default": _negative_of_result(1, 4),
    "fmax.default": _EXTREME,
    "fmin.default": _EXTREME,
    "grid_sampler_2d.default": _TWO,
    "grid_sampler_3d.default": _TWO,
    "heaviside.default": _TWO,
    "histogram.bin_ct": lambda self, bins=100, *_: bins < 1,
    "histogram.bins_tensor": _TWO,
    "huber_loss.default": _TWO,
    "index_add.default": _ROWS,
    "index_copy.default": _ROWS,
    "index_fill.int_Scalar": _not_long(2),
    "index_fill.int_Tensor": _not_long(2),
    "index_put.default": _WRITTEN,
    "index_reduce.default": _ROWS,
    "index_select.default": _odd_index,
    "leaky_relu_backward.default": _negative_of_result(2, 3),
    "linalg_cross.default": _TWO,
    "linalg_lstsq.default": _TWO,
    "linear.default": _differ(0, 1, 2),
    "max.dim": _EXTREME,
    "maximum.default": _EXTREME,
    "min.dim": _EXTREME,
    "minimum.default": _EXTREME,
    "multi_margin_loss.default": _not_long(1),
    "multilabel_margin_loss_forward.default": _not_long(1),
    "multinomial.default": _takes_floats,
    "mvlgamma.default": lambda self, p: p < 1 or self.dtype == torch.bool,
    "nansum.default": _EXTREME,
    "native_batch_norm.default": _odd_batch_norm,
    "nll_loss2d_forward.default": _differ(0, 2),
    "nll_loss_forward.default": _differ(0, 2),
    "polar.default": _TWO,
    "pow.Tensor_Scalar": lambda self, exponent: exponent.__class__ is int and exponent < 0,
    "put.default": _any(_differ(0, 2), _not_long(1)),
    "randint_like.low_dtype": _odd_bounds,
    "random.from": _odd_bounds,
    "random.to": lambda self, high, *_: _beyond(self.dtype, high - 1),
    "rrelu_with_noise_backward.default": (
        lambda _, self, noise, lower, upper, training, is_result: (
            is_result and not training and lower + upper < 0
        )
    ),
    "rsub.Scalar": _of(torch.bool),
    "rsub.Tensor": _of(torch.bool),
    "select_scatter.default": _no_slice(torch.select),
    "slice_scatter.default": _no_slice(torch.ops.aten.slice.Tensor),
    "soft_margin_loss.default": _unlike,
    "sort.default": _any(_out_of_range, _EXTREME),
    "sort.stable": _EXTREME,
    "std.correction": _is_exact,
    "sub.Scalar": _of(torch.bool),
    "sub.Tensor": _of(torch.bool),
    "topk.default": _of(torch.bool, *_COMPLEX),
    "uniform.default": _odd_uniform,
    "var.correction": _is_exact,
}

# What torch_xla 2.9 computes all the same, so that scripts that it ran may do it.
TAKEN: dict[str, Rule] = {
    "argmax.default": _of(torch.bool),
    "argmin.default": _of(torch.bool),
    "bmm.default": _TWO,
    "convolution.default": lambda *args: _TWO(*args) and not _differ(1, 2)(*args),
    "index_add.default": _rows_of_another_dtype,
    "index_copy.default": _rows_of_another_dtype,
    "linear.default": lambda x, weight, bias=None: (
        not _differ(1, 2)(x, weight, bias) and (bias is None or x.dim() != 2)
    ),
    "mm.default": _TWO,
    "mv.default": _TWO,
    "native_group_norm.default": _mixed(0, 1, 2),
    "native_layer_norm.default": _mixed(0, 2, 3),
    "nll_loss2d_forward.default": _not_long(1),
    "nll_loss_forward.default": _not_long(1),
    "relu.default": _of(torch.bool),
}

# Factorizations, which neither torch nor XLA has in low precision.
_FACTORS = (
    "_linalg_det _linalg_eigh _linalg_eigvals _linalg_slogdet _linalg_solve_ex _linalg_svd"
    " cholesky_inverse geqrf linalg_cholesky_ex linalg_eig linalg_eigvals linalg_inv_ex"
    " linalg_ldl_factor_ex linalg_lstsq linalg_lu linalg_lu_factor_ex linalg_lu_solve linalg_qr"
    " linalg_solve_triangular"
)
LOW_PRECISION = frozenset(f"{name}.default" for name in _FACTORS.split())


def is_low(args: Sequence[Any]) -> bool:
    """Whether an operand is of low precision."""
    return _of(*_LOW)(*args)
