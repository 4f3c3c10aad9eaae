"""Managers of sharded checkpoints for tests, in a process group of one."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import torch_xla.distributed.spmd as xs
from torch_xla.experimental.distributed_checkpoint import CheckpointManager


def manager_of(path: Any, save_interval: int = 10, **kwargs: Any) -> CheckpointManager:
    """A manager in a process group of this process alone, which leaves SIGTERM alone."""
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return CheckpointManager(str(path), save_interval, **{"chkpt_on_preemption": False, **kwargs})


def sharded(tensor: torch.Tensor, spec: tuple[Any, ...] = (0,)) -> torch.Tensor:
    """A copy on the device, cut by the spec over four devices in a row."""
    copy = tensor.to("xla")
    xs.mark_sharding(copy, xs.Mesh(np.arange(4), (4,)), spec)
    return copy


def folders(path: Path) -> list[str]:
    """What is in a folder, by name."""
    return sorted(entry.name for entry in path.iterdir())


@contextmanager
def warned() -> Iterator[list[str]]:
    """The warnings that are logged in the block."""
    texts: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: texts.append(record.getMessage())
    logging.getLogger().addHandler(handler)
    try:
        yield texts
    finally:
        logging.getLogger().removeHandler(handler)
