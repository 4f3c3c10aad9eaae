"""Checkpoints of a training job: written beside the training, whole or not at all, by every rank.

    manager = CheckpointManager("checkpoints", keep=3, replicated=("model", "optimizer"))
    resumed = manager.restore(model=model, optimizer=optimizer, loader=loader)
    manager.save(step, model=model, optimizer=optimizer, loader=loader, epoch=epoch)

No rank waits for another to save: a step counts when the files of all ranks are there. The layout
is in `folder`, the format in `file`.
"""

import threading
import warnings
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from torch_xdist import world
from torch_xdist.checkpoint import file as checkpoint_file
from torch_xdist.checkpoint import folder as folders
from torch_xdist.checkpoint.file import Entry, File
from torch_xdist.checkpoint.state import (
    RNG,
    collected,
    end_step,
    is_stateful,
    joined,
    restore_random_states,
    snapshot,
    streamed,
)
from torch_xdist.collectives.messages import communicator
from torch_xdist.core.devices import device
from torch_xdist.errors import CheckpointError
from torch_xdist.progress import PROGRESS

_UNREADABLE = -1


class CorruptCheckpointWarning(UserWarning):
    """A step was skipped because one of its files is corrupt."""


@dataclass(frozen=True, slots=True)
class Restored:
    """What `restore` found: the step, and the plain values that were saved, by name."""

    step: int
    values: dict[str, Any] = field(default_factory=dict)


class CheckpointManager:
    """Saves and restores the state of a job in a folder that all ranks share.

    Args:
        directory: the folder; made at the first save.
        keep: how many complete steps stay; 0 keeps all.
        replicated: names whose tensors are equal on every rank: each rank writes a part of them,
            and they can be restored by another number of ranks. The rest is saved for each rank.
        asynchronous: `save` copies the tensors and returns; a thread writes them. False writes
            before it returns, and needs host memory for one tensor only.
        rank, world_size: this process's place; taken from the launcher.
    """

    def __init__(
        self,
        directory: str | PathLike[str],
        *,
        keep: int = 3,
        replicated: Sequence[str] = (),
        asynchronous: bool = True,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        self._folder = Path(directory)
        self._keep = keep
        self._replicated = frozenset(replicated)
        self._asynchronous = asynchronous
        self._rank = world.rank() if rank is None else rank
        self._ranks = world.world_size() if world_size is None else world_size
        self._is_clean = False
        self._resumed: int | None = None  # an older step than the newest was restored
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        if keep < 0:
            raise CheckpointError(f"CheckpointManager: keep is {keep}; give 0 (all) or more")

    def __enter__(self) -> "CheckpointManager":
        return self

    def __exit__(self, *_: object) -> None:
        self.wait()

    def save(self, step: int, **things: Any) -> None:
        """Save objects with state_dict and load_state_dict, and plain values, as one step.

        The random states of torch, Python, numpy and the devices are always saved. A save under way
        is waited for. The first save after an older step was restored puts the later ones aside, as
        `abandoned-step-...`: they belong to a training that is not gone on with. Then, and only
        then, the ranks wait for each other.

        Raises: CheckpointError where this step is complete already, a value cannot be saved, or the
            save before could not be written.
        Cost: cuts the trace if a tensor is pending; asynchronous: device memory for a copy.
        """
        self.wait()
        self._leave_abandoned_steps()
        if folders.ranks_of(self._folder, step) == self._ranks:
            raise CheckpointError(
                f"checkpoint.save: step {step} is complete in {self._folder}; save another step, or"
                " delete its folder first"
            )
        end_step()
        found = collected(things, self._owners)
        mine = found.of_rank(self._rank)
        entries = snapshot(mine) if self._asynchronous else streamed(mine)
        structure = {name: getattr(found, name) for name in ("states", "values", "versions")}
        if not self._asynchronous:
            self._write(step, structure, entries)
            return
        # No daemon: the interpreter waits for a save under way before it ends.
        self._thread = threading.Thread(
            target=self._write_noting, args=(step, structure, entries), name="xdist-checkpoint"
        )
        self._thread.start()

    def wait(self) -> None:
        """Wait for the save under way. Raises CheckpointError where it could not be written."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def restore(self, step: int | None = None, **things: Any) -> Restored | None:
        """Load the newest complete step (or `step`) into objects, and the random states.

        A step with a corrupt file is skipped with a warning that names the file. Every rank calls
        this; all restore the same step. None where there is no step.

        Raises: CheckpointError for a `step` that is not there or corrupt, a name that was not
            saved, or a state saved for each rank by another number of ranks.
        """
        self.wait()
        complete = self.steps()
        candidates = [step] if step is not None else reversed(complete)
        for candidate in candidates:
            reader, error = self._opened(candidate)
            newest = self._gathered(max(complete, default=0) if error is None else _UNREADABLE)
            if min(newest) == _UNREADABLE:
                if step is not None:
                    raise error or _of_another_rank(candidate)
                warnings.warn(
                    CorruptCheckpointWarning(str(error or _of_another_rank(candidate))),
                    stacklevel=2,
                )
                continue
            assert reader is not None
            restored = self._applied(reader, things)
            self._resumed = restored.step if restored.step < max(newest) else None
            PROGRESS.resume(restored.step)
            return restored
        PROGRESS.resumed = PROGRESS.resumed or 0
        return None

    def latest(self) -> int | None:
        """The newest complete step; None where there is none."""
        return max(self.steps(), default=None)

    def steps(self) -> list[int]:
        """The complete steps, ascending."""
        return folders.complete_steps(self._folder)

    def _leave_abandoned_steps(self) -> None:
        resumed, self._resumed = self._resumed, None
        if resumed is None:
            return
        if self._rank == 0:
            folders.abandon(self._folder, resumed)
        # A rank that wrote before would have its file renamed with the old ones.
        self._gathered(resumed)

    def _owners(self, name: str, tensors: dict[str, torch.Tensor]) -> dict[str, int]:
        """The rank that writes each tensor: for replicated ones the ranks share the bytes."""
        if name not in self._replicated:
            return dict.fromkeys(tensors, self._rank)
        loads = [0] * self._ranks
        owners = {}
        for path in sorted(tensors, key=lambda p: (-tensors[p].nbytes, p)):
            owners[path] = rank = loads.index(min(loads))
            loads[rank] += tensors[path].nbytes
        return owners

    def _write_noting(self, step: int, structure: Any, entries: dict[str, Entry]) -> None:
        try:
            self._write(step, structure, entries)
        except BaseException as error:
            self._failure = error

    def _write(self, step: int, structure: Any, entries: dict[str, Entry]) -> None:
        if not self._is_clean:
            folders.remove_leftovers(self._folder, self._rank, self._ranks)
            self._is_clean = True
        path = folders.rank_file(self._folder, step, self._rank, self._ranks)
        folders.make(path.parent)
        facts = {"step": str(step), "rank": str(self._rank), "ranks": str(self._ranks)}
        checkpoint_file.write(path, structure, entries, facts)
        if self._rank == 0:
            present, complete = folders.steps(self._folder), self.steps()
            for old in folders.surplus(present, complete, self._keep):
                folders.remove(self._folder, old)

    def _opened(self, step: int) -> "tuple[_Reader | None, CheckpointError | None]":
        try:
            return _Reader(self._folder, step, self._rank), None
        except CheckpointError as error:
            return None, error

    def _gathered(self, number: int) -> list[int]:
        """The number of every rank; they wait for each other."""
        if self._ranks == 1 or world.world_size() == 1:
            return [number]
        device.start()
        return communicator.all_gather("checkpoint", number)

    def _applied(self, reader: "_Reader", things: dict[str, Any]) -> Restored:
        """Everything is read before the first object is changed."""
        states = {name: reader.state(name, name in self._replicated) for name in things}
        random_states = reader.random_states(self._rank)
        for name, thing in things.items():
            if not is_stateful(thing):
                raise CheckpointError(
                    f"checkpoint.restore: {name} is a {type(thing).__name__}, which has no"
                    " load_state_dict; plain values come back in `.values`"
                )
        for name, thing in things.items():
            thing.load_state_dict(states[name])
        if random_states is not None:
            restore_random_states(random_states)
        return Restored(reader.step, reader.values())


class _Reader:
    """The files of one complete step, as one rank reads them.

    Raises: CheckpointError where the step is not there, or a file that this rank needs is corrupt.
    """

    def __init__(self, folder: Path, step: int, rank: int) -> None:
        ranks = folders.ranks_of(folder, step)
        if ranks is None:
            raise CheckpointError(
                f"checkpoint.restore: step {step} is not complete in {folder}; complete are"
                f" {folders.complete_steps(folder)}"
            )
        self.step = step
        self._rank = rank
        self._ranks = ranks
        self._file = cache(lambda r: _verified(folders.rank_file(folder, step, r, ranks)))
        # A rank beyond those that saved reads what they shared from the first.
        self._structure = self._file(rank if rank < ranks else 0).structure()
        # The ranks that hold a part of the shared states are found and verified here.
        joined(self._structure, self._tensor)

    def _tensor(
        self, rank: int, name: str, dtype: torch.dtype, shape: tuple[int, ...]
    ) -> torch.Tensor:
        return self._file(rank).tensor(name, dtype, shape)

    def state(self, name: str, replicated: bool) -> Any:
        """The state saved under a name. Raises CheckpointError where this rank has none."""
        states = self._structure["states"]
        if name not in states:
            raise CheckpointError(
                f"checkpoint.restore: step {self.step} has no {name!r}; it has"
                f" {', '.join(sorted(set(states) - {RNG}))}"
            )
        if not replicated and self._rank >= self._ranks:
            raise CheckpointError(
                f"checkpoint.restore: step {self.step} was saved by {self._ranks} ranks, {name!r}"
                f" for each, and this is rank {self._rank}; save it as replicated, or restore with"
                f" {self._ranks} ranks"
            )
        state = joined(states[name], self._tensor)
        versions = self._structure["versions"].get(name)
        if versions is None:
            return state
        state = OrderedDict(state)
        state._metadata = versions  # type: ignore[attr-defined]
        return state

    def random_states(self, rank: int) -> Any:
        """The random states of a rank; None for one that did not save."""
        return joined(self._structure["states"][RNG], self._tensor) if rank < self._ranks else None

    def values(self) -> dict[str, Any]:
        """The plain values, of this rank or else of rank 0."""
        return joined(self._structure["values"], self._tensor)


def _verified(path: Path) -> File:
    file = File(path)
    file.verify()
    return file


def _of_another_rank(step: int) -> CheckpointError:
    return CheckpointError(
        f"checkpoint.restore: another rank cannot read step {step}; its own message says why"
    )
