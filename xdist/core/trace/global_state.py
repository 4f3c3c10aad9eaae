"""Global state of torch and JAX that a result depends on: all of it, in one place.

- `torch.set_default_dtype`: in the key of plans whose results follow it (`of_plan`).
- `torch.set_float32_matmul_precision`, and JAX's settings for tracing (x64, promotion, PRNG, ...):
  in the key of a program (`of_program`).
- autocast: its casts are operators, recorded like any others.
- grad mode, inference mode, hooks: torch's own, above the device; the values do not differ.
- `torch.set_default_device`, `with torch.device(...)`: arguments by the time they come here.
- `torch.manual_seed`, generators: seed and counter are inputs of a program.
- `torch.use_deterministic_algorithms`: every lowering is deterministic, and `empty` gives zeros.
- torch's flags of TF32, for products and for convolutions: in the key of programs for GPUs.
- torch's flags of the parts of sums over halves: in the key of programs for GPUs.
- torch's flags of other backends (cuDNN, MKL, denormals): nothing of them is used here.
- which forms operators have, by its platform: in the key of a program.
- how wide positions are in a program, by its platform: in the key of a program.
- variables that store dtypes narrower (XLA_USE_BF16, ...): read once for each dtype.
"""

from typing import Any

import jax
import torch
from jax._src import config
from jax.lax import Precision

from torch_xdist.ops import exactness, forms, positions
from torch_xdist.platforms import Choices

_tracing = getattr(config, "trace_context", None)

# What plans that follow it have in their key.
of_plan = torch.get_default_dtype


# Whether the user has said by torch_xla's names how exact products are: then torch's do not.
_is_said = [False]
# Whether it is what torch's flags of a GPU say.
_is_torchs = [False]


def say_products(is_said: bool) -> None:
    """Whether JAX's setting of products is the user's own word, also on a GPU."""
    _is_said[0] = is_said
    _is_torchs[0] = False


def follow_torch(choices: Choices) -> None:
    """Let torch's flags of a GPU's products decide for the programs made for one from now on.

    JAX takes TF32 for what is float32 unless it is told otherwise; torch only for convolutions.
    Parts of a sum may be rounded to halves before they are added, as in torch, by flags as well.
    """
    forms.choose(choices)
    positions.count_narrowly(choices.counts_narrowly)
    exactness.round_products(_rounded() if choices.rounds_products else ())
    if not choices.has_tf32:
        exactness.choose_for_convolutions(None)
        if _is_torchs[0]:
            _is_torchs[0] = False
            jax.config.update("jax_default_matmul_precision", None)
        return
    if not _is_said[0]:
        wanted = "high" if _allows(torch.backends.cuda.matmul) else "highest"
        _is_torchs[0] = True
        if jax.config.jax_default_matmul_precision != wanted:  # type: ignore[attr-defined]
            jax.config.update("jax_default_matmul_precision", wanted)
    allowed = _allows(torch.backends.cudnn.conv)  # type: ignore[attr-defined]
    exactness.choose_for_convolutions(Precision.DEFAULT if allowed else Precision.HIGHEST)


def _rounded() -> tuple[str, ...]:
    """The halves of which the parts of a sum may be rounded, for which cuBLAS needs leave."""
    flags: Any = torch.backends.cuda.matmul
    allowed = {
        "float16": flags.allow_fp16_reduced_precision_reduction,
        "bfloat16": flags.allow_bf16_reduced_precision_reduction,
    }
    return tuple([name for name, is_allowed in allowed.items() if is_allowed])


def _allows(flags: Any) -> bool:
    # One word for the old flag (`allow_tf32`) and the newer one, which may not be mixed in a read.
    return bool(flags.fp32_precision == "tf32")


def of_program(choices: Choices | None = None) -> Any:
    """Everything that changes what JAX makes of the same rows. Hashable.

    Args:
        choices: of the device that the program is for; None: as for the last one.

    JAX keys its own programs by it. Where a release of JAX has it no more, it is the precision of
    matrix products alone, the one of these that this package lets users choose.
    """
    chosen = forms.chosen()
    # Each step asks, and of other platforms' programs no flag decides.
    if choices is not None and (choices is not chosen or choices.has_tf32):
        follow_torch(choices)
        chosen = choices
    tracing = _tracing() if _tracing is not None else jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
    products = exactness.of_convolutions(), exactness.rounded_products()
    return tracing, products, chosen
