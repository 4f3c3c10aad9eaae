"""Folding what several ranks contributed into one array, with numpy.

The order is always member 0, 1, 2, ..., so every rank that folds gets the same bits. float16,
bfloat16 and the float8 kinds are added in float32 and rounded once.
"""

from collections.abc import Sequence

import ml_dtypes
import numpy as np

from torch_xdist.collectives.errors import ArgumentError, DtypeError

REDUCTIONS: dict[str, np.ufunc] = {
    "sum": np.add,
    "mul": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
_BITWISE = ("and", "or", "xor")
_ORDERED = ("min", "max")
_NARROW = {
    np.dtype(kind)
    for kind in (
        np.float16,
        ml_dtypes.bfloat16,
        ml_dtypes.float8_e5m2,
        ml_dtypes.float8_e4m3fn,
        ml_dtypes.float8_e5m2fnuz,
        ml_dtypes.float8_e4m3fnuz,
    )
}


def check(reduction: str, dtype: np.dtype, *, of: str) -> None:
    """Raise unless `reduction` exists and is defined for `dtype`."""
    if reduction not in REDUCTIONS:
        raise ArgumentError(
            f"{of}: reduction {reduction!r} is unknown; use one of {', '.join(REDUCTIONS)}"
        )
    whole = dtype.kind in "biu"
    if reduction in _BITWISE and not whole:
        raise DtypeError(
            f"{of}: reduction {reduction!r} works on bits, and {dtype.name} is no integer or bool; "
            "use an integer dtype"
        )
    if reduction in _ORDERED and dtype.kind == "c":
        raise DtypeError(
            f"{of}: reduction {reduction!r} needs an order, which {dtype.name} has not; reduce "
            "the absolute value"
        )


def wide(dtype: np.dtype) -> np.dtype:
    """The dtype of a part of a reduction that others go on with, so that it is rounded once."""
    return np.dtype(np.float32) if dtype in _NARROW else dtype


def fold(reduction: str, parts: Sequence[np.ndarray], out: np.ndarray) -> None:
    """Write the reduction of `parts` (equal shapes and dtypes) to `out`; `out` may be parts[0].

    `parts` or `out` may be `wide`.
    """
    combine = REDUCTIONS[reduction]
    with np.errstate(all="ignore"):
        if len(parts) == 1:
            out[...] = parts[0]
        elif out.dtype in _NARROW or parts[0].dtype in _NARROW:
            total = parts[0].astype(np.float32)
            for part in parts[1:]:
                combine(total, part.astype(np.float32), out=total)
            out[...] = total
        else:
            combine(parts[0], parts[1], out=out)
            for part in parts[2:]:
                combine(out, part, out=out)
