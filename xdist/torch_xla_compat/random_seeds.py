"""Random numbers by torch_xla's names: seeds and states of the devices' streams."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from torch_xdist.core.devices import rng


def set_rng_state(seed: int, device: str | torch.device | None = None) -> None:
    """Start a device's random numbers anew, from a seed or a state of `get_rng_state`."""
    rng.set_rng_state(seed, device)


def get_rng_state(device: str | torch.device | None = None) -> int:
    """The state of a device's random numbers: a plain int that fits 64 bits."""
    return rng.get_rng_state(device)


def manual_seed(seed: int, device: str | torch.device | None = None) -> None:
    """Seed a device; ranks draw different numbers from the same seed."""
    rng.set_rng_state(seed, device)


@contextmanager
def fork_rng(device: str | torch.device | None = None, enabled: bool = True) -> Iterator[None]:
    """Give a device its random state back when the block ends."""
    if not enabled:
        yield
        return
    state = rng.get_rng_state(device)
    try:
        yield
    finally:
        rng.set_rng_state(state, device)
