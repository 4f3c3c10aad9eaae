"""Where a loader stands, so that a job can go on with the very next batch.

A position names the pass, the batches handed to the loop, and the random states from which the
sampler drew its order when the pass began. It counts what the loop got, not what was prefetched.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from torch_xdist.loaders.errors import ArgumentError

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Start:
    """Where a pass begins: batches to skip, and the random states to begin it with."""

    batches: int
    random: torch.Tensor
    generator: torch.Tensor | None = None
    random_after: torch.Tensor | None = None

    @contextmanager
    def random_state(self, loader: Any) -> Iterator[None]:
        """Inside, the generators are as when the pass began; afterwards as before.

        Where the dataset draws from torch's own generator, that one goes on as after the last batch
        handed out.
        """
        before = torch.get_rng_state()
        generator = getattr(loader, "generator", None)
        torch.set_rng_state(self.random)
        if generator is not None and self.generator is not None:
            generator.set_state(self.generator)
        try:
            yield
        finally:
            torch.set_rng_state(before if self.random_after is None else self.random_after)


@dataclass(slots=True)
class Position:
    """The pass under way: its number from 0, batches handed out, random states at its begin."""

    epoch: int = -1
    batches: int = 0
    finished: bool = True
    random: torch.Tensor = field(default_factory=torch.get_rng_state)
    generator: torch.Tensor | None = None
    random_after: torch.Tensor | None = None
    sampler_epoch: int | None = None

    def following(self, loader: Any) -> "Position":
        """The position at the begin of the next pass over `loader`."""
        generator = getattr(loader, "generator", None)
        return Position(
            epoch=self.epoch + 1,
            finished=False,
            generator=None if generator is None else generator.get_state(),
            sampler_epoch=_sampler_epoch(loader),
        )

    def advance(self, random_after: torch.Tensor | None) -> None:
        """A batch was handed to the loop."""
        self.batches += 1
        self.random_after = random_after

    def resume(self, loader: Any) -> Start:
        """The pass goes on: put the sampler back to its epoch and say where to start."""
        sampler = getattr(loader, "sampler", None)
        if sampler is not None and self.sampler_epoch is not None:
            sampler.set_epoch(self.sampler_epoch)
        return Start(self.batches, self.random, self.generator, self.random_after)

    def state_dict(self) -> dict[str, Any]:
        """The position as plain data and tensors."""
        return {
            "format": FORMAT,
            "epoch": self.epoch,
            "batches": self.batches,
            "finished": self.finished,
            "random": self.random,
            "generator": self.generator,
            "random_after": self.random_after,
            "sampler_epoch": self.sampler_epoch,
        }


def position_of(state: dict[str, Any]) -> Position:
    """The position that `state_dict` wrote. Raises ArgumentError for anything else."""
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise ArgumentError(
            f"loader.load_state_dict: got {type(state).__name__} with format"
            f" {state.get('format') if isinstance(state, dict) else None!r}, and needs what"
            f" state_dict of a loader wrote, format {FORMAT}"
        )
    return Position(**{name: value for name, value in state.items() if name != "format"})


def _sampler_epoch(loader: Any) -> int | None:
    sampler = getattr(loader, "sampler", None)
    epoch = getattr(sampler, "epoch", None)
    return epoch if isinstance(epoch, int) and hasattr(sampler, "set_epoch") else None
