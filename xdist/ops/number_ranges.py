"""Python numbers that a dtype does not hold: torch refuses them where it converts them to it.

The program of a step would wrap or saturate them. Which operators convert which of their numbers is
left to CPU torch: what is here only says when it has to be asked.
"""

import functools
import math
from collections.abc import Iterable
from typing import Any

import torch

# Each floating-point dtype of a computation holds the numbers up to this one.
SAFE = torch.finfo(torch.float16).max


def fit(numbers: Iterable[Any], dtype: torch.dtype) -> bool:
    """Whether the ints and floats among these convert to a dtype."""
    least, most = _limits(dtype)
    for number in numbers:
        if number.__class__ not in (int, float) or least <= number <= most:
            continue
        if is_exact(dtype) or math.isfinite(number):
            return False
    return True


def is_exact(dtype: torch.dtype) -> bool:
    """Whether it holds whole numbers, or bools."""
    return not (dtype.is_floating_point or dtype.is_complex)


@functools.cache
def _limits(dtype: torch.dtype) -> tuple[float, float]:
    if dtype == torch.bool:
        return (-math.inf, math.inf)
    if dtype.is_complex:
        return _limits(dtype.to_real())
    info = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    # torch lets negative numbers wrap in what has no sign.
    return (info.min or -info.max, info.max)
