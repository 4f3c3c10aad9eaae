"""Forms for TPUs where JAX's own do not compile: put in place of JAX's when this is imported.

In 64-bit mode, which the device has on, JAX's singular values for TPUs (QDWH-SVD) mix counters of
32 and 64 bits, and libtpu 0.0.42 aborts its process over them. Lowered in 32-bit mode they compile.
"""

from typing import Any

import jax
import numpy as np

try:
    from jax._src.interpreters import mlir
    from jax._src.lax.linalg import svd_p

    _rule: Any = mlir._lowerings[svd_p]
except (ImportError, AttributeError, KeyError):
    _rule = None

_WIDE = (np.dtype(np.float64), np.dtype(np.complex128))


def _svd(ctx: Any, *operands: Any, **named: Any) -> Any:
    # Numbers of 64 bits need the mode, and compile in it.
    rule = getattr(_rule, "rule", _rule)
    if ctx.avals_in[0].dtype in _WIDE:
        return rule(ctx, *operands, **named)
    with jax.enable_x64(False):
        return rule(ctx, *operands, **named)


if _rule is not None:
    mlir.register_lowering(svd_p, _svd, platform="tpu")
