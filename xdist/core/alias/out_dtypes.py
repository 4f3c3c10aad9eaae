"""The dtype of an out= tensor: torch casts some results into it, and refuses others.

Which of torch's kernels refuse, and how, was asked of the CPU for each operator with an out=, with
float32 operands and a float64 out= (torch 2.13).
"""

import torch


def _overloads(names: str) -> frozenset[str]:
    named = (name if "." in name else f"{name}.out" for name in names.split())
    return frozenset(f"aten.{name}" for name in named)


# Iterators that compute in the dtype of their result.
_FOUND = _overloads("""
    abs absolute binary_cross_entropy binary_cross_entropy_backward.grad_input ceil clamp_max
    clamp_min conj_physical elu fix floor frac gelu hardshrink hardsigmoid hardswish hardtanh
    huber_loss_backward leaky_relu lerp.Tensor_out log_sigmoid_backward.grad_input mish neg negative
    round rrelu_with_noise sgn sign silu soft_margin_loss softplus softshrink trunc
""")
# Kernels that write their result as it is.
_EXPECTED = _overloads("""
    _add_relu.Scalar_out _addmm_activation _cdist_backward _cholesky_solve_helper _euclidean_dist
    _log_softmax _log_softmax_backward_data _pdist_backward _pdist_forward _softmax
    _softmax_backward_data _standard_gamma add.Scalar_out addmm alias_copy as_strided_copy
    bernoulli.Tensor_out bernoulli.float_out binary_cross_entropy_with_logits block_diag cauchy celu
    clone copy diag diag_embed diagonal_copy dist div.Scalar_out exponential fill.Scalar_out flip
    floor_divide.Scalar_out hardswish_backward lift lift_fresh_copy linalg_matrix_exp
    linalg_vector_norm linear log_normal matmul median mm mul.Scalar_out nanmedian
    native_dropout_backward norm.Scalar_out normal poisson prod relu remainder.Scalar_Tensor_out
    renorm resize resize_as roll rot90 rrelu_with_noise_backward rsub.Scalar_out rsub.Tensor_out
    slice_scatter softmax.int_out log_softmax.int_out squeeze_copy squeeze_copy.dim_out
    squeeze_copy.dims_out sub.Scalar_out sum t_copy
    trace transpose_copy.int_out tril triu uniform unsqueeze_copy zero
""")
# What torch's kernels call a dtype, and what C++ does.
_NAMES = {
    "float32": ("Float", "float"), "float64": ("Double", "double"),
    "float16": ("Half", "c10::Half"), "bfloat16": ("BFloat16", "c10::BFloat16"),
    "int64": ("Long", "long int"), "int32": ("Int", "int"), "int16": ("Short", "short int"),
    "int8": ("Char", "signed char"), "uint8": ("Byte", "unsigned char"), "bool": ("Bool", "bool"),
    "complex64": ("ComplexFloat", "c10::complex<float>"),
    "complex128": ("ComplexDouble", "c10::complex<double>"),
}  # fmt: skip


def dtype_title(dtype: torch.dtype) -> str:
    """What torch's kernels call a dtype."""
    return _names_of(dtype)[0]


def _names_of(dtype: torch.dtype) -> tuple[str, str]:
    name = str(dtype).removeprefix("torch.")
    return _NAMES.get(name, (name, name))


def check_castable(result: torch.dtype, target: torch.dtype) -> None:
    """torch's refusal of a result that would lose its kind of numbers, as float to int."""
    if not torch.can_cast(result, target):
        raise RuntimeError(
            f"result type {dtype_title(result)} can't be cast to the desired output type "
            f"{dtype_title(target)}"
        )


def check_same(name: str, result: torch.dtype, target: torch.dtype) -> None:
    """torch's refusal of an out= that has not the dtype of the result, where it does not cast."""
    if result is target:
        return
    (wanted, wanted_in_c), (given, given_in_c) = _names_of(result), _names_of(target)
    if name in _FOUND:
        raise RuntimeError(f"Found dtype {given} but expected {wanted}")
    if name in _EXPECTED:
        raise RuntimeError(
            f"Expected out tensor to have dtype {wanted_in_c}, but got {given_in_c} instead"
        )
