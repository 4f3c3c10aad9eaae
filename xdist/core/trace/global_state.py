"""Global state of torch and JAX that a result depends on: all of it, in one place.

- `torch.set_default_dtype`: in the key of plans whose results follow it (`of_plan`).
- `torch.set_float32_matmul_precision`, and JAX's settings for tracing (x64, promotion, PRNG, ...):
  in the key of a program (`of_program`).
- autocast: its casts are operators, recorded like any others.
- grad mode, inference mode, hooks: torch's own, above the device; the values do not differ.
- `torch.set_default_device`, `with torch.device(...)`: arguments by the time they come here.
- `torch.manual_seed`, generators: seed and counter are inputs of a program.
- `torch.use_deterministic_algorithms`: every lowering is deterministic, and `empty` gives zeros.
- torch's flags of other backends (TF32, cuDNN, MKL, denormals): nothing of them is used here.
- variables that store dtypes narrower (XLA_USE_BF16, ...): read once for each dtype.
"""

from typing import Any

import jax
import torch
from jax._src import config

_tracing = getattr(config, "trace_context", None)

# What plans that follow it have in their key.
of_plan = torch.get_default_dtype


def of_program() -> Any:
    """Everything that changes what JAX makes of the same rows. Hashable.

    JAX keys its own programs by it. Where a release of JAX has it no more, it is the precision of
    matrix products alone, the one of these that this package lets users choose.
    """
    return _tracing() if _tracing is not None else jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
