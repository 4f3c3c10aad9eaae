"""The state of an optimizer that has not stepped yet."""

from torch_xdist.sharded_checkpoint.optimizers import (
    prime_optimizer,
)

__all__ = [
    "prime_optimizer",
]
