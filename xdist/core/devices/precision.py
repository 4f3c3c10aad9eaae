"""How exact float32 matrix products are, on hardware with less exact units."""

import jax
import torch

from torch_xdist.core.trace import global_state
from torch_xdist.releases import patches

PRECISIONS = ("default", "high", "highest")
# torch's names: "medium" is one pass in bfloat16, which is what XLA does by default on a TPU.
_OF_TORCH = {"highest": "highest", "high": "high", "medium": "default"}
_chosen = ["default"]


def choose(precision: str) -> None:
    """Use one of `PRECISIONS` for the programs compiled from now on, whatever torch's flags say."""
    global_state.say_products(True)
    jax.config.update("jax_default_matmul_precision", None if precision == "default" else precision)
    _chosen[0] = precision


def chosen() -> str:
    """The one in use."""
    return _chosen[0]


def follow_torch() -> None:
    """Let `torch.set_float32_matmul_precision` choose for the xla devices too."""
    set_torch = torch.set_float32_matmul_precision

    def set_float32_matmul_precision(precision: str) -> None:
        set_torch(precision)
        if precision in _OF_TORCH:
            choose(_OF_TORCH[precision])
            # On a GPU torch's flags decide from here on, of which this is one.
            global_state.say_products(False)

    set_float32_matmul_precision.__doc__ = set_torch.__doc__
    patches.replace("torch.set_float32_matmul_precision", set_float32_matmul_precision)
