"""`python -m` this to join the checkpoints of all ranks into one."""

from torch_xdist.ranks.fsdp.state import (
    consolidate_sharded_model_checkpoints,
    main,
    main_of,
)

__all__ = [
    "consolidate_sharded_model_checkpoints",
    "main",
]

main_of(__name__)
