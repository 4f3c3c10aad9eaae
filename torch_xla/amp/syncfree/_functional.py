"""The steps of the optimizers as functions."""

from torch_xdist.training.optimizer_steps import (
    adam_step,
    sgd_step,
)

__all__ = [
    "adam_step",
    "sgd_step",
]
