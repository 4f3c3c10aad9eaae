"""In which dtype a pointwise operator computes.

torch promotes the operands of a pointwise operator to one dtype and computes half precision in
float32 (its "opmath"). Whoever lowers a row asks here once, while a program is built, so that no
lowering ever casts.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes

# Operands that choose between others and so take no part in promotion.
SELECTORS = frozenset({"condition", "mask"})
# Rows whose result depends on the dtype itself, so that halves must not arrive as float32.
HALVES_STAY = frozenset({"aten.nextafter.default", "aten.nan_to_num.default"})
# Where both operands are halves: float32 has twice their digits, so a product that is computed in
# it and rounded is the rounded product.
_PRODUCTS = frozenset({"aten.mul.Tensor"})
# What is exact in halves, or rounded once. Of equal dtypes, and with no number but 0.
_NO_LESS_IN_HALVES = frozenset(
    """
    aten.abs.default aten.add.Tensor aten.maximum.default aten.minimum.default aten.neg.default
    aten.relu.default aten.sub.Tensor aten.threshold_backward.default aten.where.self
    """.split()
)
_HALF = {torch.bfloat16: torch.float32, torch.float16: torch.float32}


def computation_dtype(
    operands: Sequence[torch.Tensor], scalars: Sequence[Any], out: torch.dtype, name: str = ""
) -> torch.dtype:
    """The dtype the operands of row `name` are cast to, given them and the result's dtype.

    Scalars take part only where the result's dtype does not already tell: in comparisons.
    """
    numbers = list(scalars) if out is torch.bool else []
    common, _ = elementwise_dtypes(
        *operands,
        *numbers,
        type_promotion_kind=ELEMENTWISE_TYPE_PROMOTION_KIND.NO_OPMATH,
    )
    if (
        not (common.is_floating_point or common.is_complex)
        and (out.is_floating_point or out.is_complex)
    ) or (out.is_complex and not common.is_complex):
        common = out
    elif out.is_floating_point and common.is_floating_point:
        common = torch.promote_types(common, out) if out not in _HALF else common
    elif not out.is_floating_point and out is not torch.bool and not common.is_floating_point:
        common = out if torch.can_cast(common, out) else common
    if name in _PRODUCTS and not scalars and all(x.dtype == common for x in operands):
        return common
    return common if name in HALVES_STAY else _HALF.get(common, common)


def is_no_less_in_halves(
    name: str, operands: Sequence[torch.dtype], numbers: Sequence[Any], out: torch.dtype
) -> bool:
    """Whether row `name` gives the same in halves as in float32 that is rounded to them.

    Args:
        numbers: what stands for them: those that come while it runs may be any.
    """
    is_half = out in _HALF and all(dtype is out for dtype in operands)
    return (
        is_half
        and name in _NO_LESS_IN_HALVES
        and all(type(n) in (int, float) and not n for n in numbers)
    )
