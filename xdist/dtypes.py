"""Which torch dtypes the device holds, and the JAX dtype of each."""

import jax.numpy as jnp
import numpy as np
import torch

from torch_xdist import settings
from torch_xdist.errors import UnsupportedDtypeError

_PAIRS: dict[torch.dtype, type] = {
    torch.bool: jnp.bool_,
    torch.uint8: jnp.uint8,
    torch.int8: jnp.int8,
    torch.int16: jnp.int16,
    torch.int32: jnp.int32,
    torch.int64: jnp.int64,
    torch.uint16: jnp.uint16,
    torch.uint32: jnp.uint32,
    torch.uint64: jnp.uint64,
    torch.float16: jnp.float16,
    torch.bfloat16: jnp.bfloat16,
    torch.float32: jnp.float32,
    torch.float64: jnp.float64,
    torch.complex64: jnp.complex64,
    torch.complex128: jnp.complex128,
    torch.float8_e4m3fn: jnp.float8_e4m3fn,
    torch.float8_e5m2: jnp.float8_e5m2,
    torch.float8_e4m3fnuz: jnp.float8_e4m3fnuz,
    torch.float8_e5m2fnuz: jnp.float8_e5m2fnuz,
}
_NOMINAL: dict[torch.dtype, np.dtype] = {t: np.dtype(j) for t, j in _PAIRS.items()}
_TO_TORCH: dict[np.dtype, torch.dtype] = {j: t for t, j in _NOMINAL.items()}


class _Stored(dict[torch.dtype, np.dtype]):
    """How the device stores each dtype; torch_xla's switches store some narrower.

    A tensor still reports its own dtype. What holds for a dtype is decided when it is first used,
    as there: scripts set the variables after the import.
    """

    def __missing__(self, dtype: torch.dtype) -> np.dtype:
        nominal = _NOMINAL[dtype]
        narrow = settings.narrowed().get(nominal.name)
        found = self[dtype] = nominal if narrow is None else np.dtype(getattr(jnp, narrow))
        return found


_STORED = _Stored()
# As XLA writes the types of elements.
XLA_NAMES: dict[torch.dtype, str] = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
    torch.uint8: "u8",
    torch.int8: "s8",
    torch.uint16: "u16",
    torch.int16: "s16",
    torch.uint32: "u32",
    torch.int32: "s32",
    torch.uint64: "u64",
    torch.int64: "s64",
    torch.complex64: "c64",
    torch.complex128: "c128",
    torch.bool: "pred",
    torch.float8_e4m3fn: "f8e4m3fn",
    torch.float8_e5m2: "f8e5m2",
    torch.float8_e4m3fnuz: "f8e4m3fnuz",
    torch.float8_e5m2fnuz: "f8e5m2fnuz",
}
_ADVICE = {torch.complex32: "complex64"} | dict.fromkeys(
    [torch.quint8, torch.qint8, torch.qint32, torch.quint4x2, torch.quint2x4],
    "an integer tensor with its scale beside it: quantized tensors live on the CPU",
)


def to_jax(dtype: torch.dtype) -> np.dtype:
    """The JAX dtype of the same bits. Raises UnsupportedDtypeError where JAX has none."""
    try:
        return _STORED[dtype]
    except KeyError:
        advice = _ADVICE.get(dtype, "a dtype the device has, such as float32 or int8")
        raise UnsupportedDtypeError(
            f"dtype {dtype} does not exist on xla devices; use {advice}"
        ) from None


def nominal(dtype: torch.dtype) -> np.dtype:
    """The JAX dtype of what a tensor reports, however narrow the device stores it."""
    return _NOMINAL[dtype]


def to_torch(dtype: np.dtype) -> torch.dtype:
    """The torch dtype of the same bits."""
    return _TO_TORCH[np.dtype(dtype)]
