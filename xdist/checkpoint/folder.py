"""The folder of a `CheckpointManager`: one folder per step, one file per rank.

    checkpoints/step-00000100/rank-00000-of-00002.safetensors
                              rank-00001-of-00002.safetensors

A file is there only when it is whole, and a step is complete when the files of all its ranks are
there: no rank has to wait for another, and no list has to be kept. Steps that a killed job left
incomplete are never read.
"""

import os
import re
import shutil
from collections import defaultdict
from pathlib import Path

from torch_xdist.errors import CheckpointError

_STEP = re.compile(r"step-(\d+)")
_ABANDONED = "abandoned-"
_FILE = re.compile(r"rank-(\d+)-of-(\d+)\.safetensors")


def step_folder(folder: Path, step: int) -> Path:
    """Where the files of a step are."""
    return folder / f"step-{step:08d}"


def rank_file(folder: Path, step: int, rank: int, ranks: int) -> Path:
    """The file of one rank of a step."""
    return step_folder(folder, step) / f"rank-{rank:05d}-of-{ranks:05d}.safetensors"


def ranks_of(folder: Path, step: int) -> int | None:
    """How many ranks wrote a complete step; None where it is not complete."""
    present: dict[int, set[int]] = defaultdict(set)
    try:
        for path in step_folder(folder, step).iterdir():
            if match := _FILE.fullmatch(path.name):
                present[int(match[2])].add(int(match[1]))
    except (FileNotFoundError, NotADirectoryError):
        return None
    whole = [ranks for ranks, found in present.items() if found >= set(range(ranks))]
    return max(whole, default=None)


def steps(folder: Path) -> list[int]:
    """The steps that have a folder, complete or not, ascending."""
    if not folder.is_dir():
        return []
    found = (_STEP.fullmatch(path.name) for path in folder.iterdir())
    return sorted(int(match[1]) for match in found if match)


def complete_steps(folder: Path) -> list[int]:
    """The steps that can be restored, ascending."""
    return [step for step in steps(folder) if ranks_of(folder, step) is not None]


def surplus(present: list[int], complete: list[int], keep: int) -> list[int]:
    """Which of the steps present are to go so that the newest `keep` complete ones stay.

    Incomplete steps go when a complete one is newer: then no rank writes them any more. 0 keeps
    all.
    """
    kept = complete[-keep:] if keep else []
    return [step for step in present if kept and step < kept[0]]


def make(folder: Path) -> None:
    """Make a folder and put it on the disk; raises CheckpointError where that is refused."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in missing:
            descriptor = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
    except OSError as error:
        raise CheckpointError(
            f"checkpoint.save: {folder} cannot be made ({error}); choose another directory"
        ) from error


def abandon(folder: Path, after: int) -> None:
    """Rename the steps after this one, so that they are no steps any more; nothing is deleted."""
    for step in steps(folder):
        if step > after:
            old, number = step_folder(folder, step), 1
            while (new := folder / f"{_ABANDONED}{old.name}.{number}").exists():
                number += 1
            old.rename(new)


def remove(folder: Path, step: int) -> None:
    """Delete a step; whatever interrupts this leaves it incomplete or gone."""
    shutil.rmtree(step_folder(folder, step), ignore_errors=True)


def remove_leftovers(folder: Path, rank: int, ranks: int) -> None:
    """Delete what a killed job left of this rank: partial files, and files of incomplete steps.

    The folders stay: another rank may be writing into one of them already.
    """
    for step in steps(folder):
        own = rank_file(folder, step, rank, ranks)
        for partial in own.parent.glob(f".{own.name}.*.partial"):
            partial.unlink(missing_ok=True)
        if ranks_of(folder, step) is None:
            own.unlink(missing_ok=True)
