"""Operators whose Python scalars are inputs of the program instead of constants in it.

A learning rate that changes every step would otherwise compile every step anew. Names are packets
without the trailing underscore of the in-place form, or one overload. Exponents are constants: a
square is a product, which no program that gets the 2 as an input can know.
"""

_ARITHMETIC = """
add sub rsub mul div true_divide addcmul addcdiv lerp fill full full_like new_full scalar_tensor
masked_fill where maximum minimum clamp clamp_min clamp_max remainder fmod
eq ne lt le gt ge addmm addmv addr baddbmm addbmm
_foreach_add _foreach_sub _foreach_mul _foreach_div _foreach_addcmul _foreach_addcdiv
_foreach_lerp _foreach_maximum _foreach_minimum _foreach_clamp_min _foreach_clamp_max
_fused_adam _fused_adamw _fused_sgd _fused_adagrad
pow.Scalar _foreach_pow.ScalarAndTensor
"""

RUNTIME: frozenset[str] = frozenset(_ARITHMETIC.split())
