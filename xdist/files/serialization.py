"""Checkpoints with one file per tensor: `path` holds the structure, `path.tensors/` the tensors.

No host ever holds more than one tensor of it. The layout is torch_xla's `xser`, so files written
by either are read by both.
"""

import os
from pathlib import Path
from typing import Any

import torch

from torch_xdist.arena import ToXlaTensorArena, for_each_instance_rewrite
from torch_xdist.core.devices import ordinals
from torch_xdist.errors import CheckpointError
from torch_xdist.files import saving


class TensorReference:
    """Stands in the structure for tensor number `tid`."""

    # torch_xla's readers look the class up by its name there.
    __module__ = "torch_xla.utils.serialization"

    def __init__(self, tid: int) -> None:
        self.tid = tid


def tensors_folder(path: str | os.PathLike[str]) -> Path:
    """The folder that holds the tensors of the checkpoint `path`."""
    return Path(f"{os.fspath(path)}.tensors")


def tensor_file(path: str | os.PathLike[str], tid: int) -> Path:
    """The file of tensor number `tid`."""
    return tensors_folder(path) / f"tensor_{tid}.pt"


def write(data: Any, path: str | os.PathLike[str]) -> None:
    """Write `data` and one file for each device tensor in it.

    Tensors of an earlier checkpoint of that name are replaced one by one; the structure comes
    last. Raises CheckpointError for what the file system refuses.
    """
    folder = tensors_folder(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(
            f"xser.save: the folder {folder} cannot be made ({error}); choose another path"
        ) from error
    files: list[torch.Tensor] = []
    structure = ToXlaTensorArena(
        lambda tensors: _references(tensors, files),  # type: ignore[arg-type, return-value]
        saving.is_device_tensor,
        keep_tuples=True,
    ).transform(data)
    for tid, tensor in enumerate(files):
        saving.write(tensor.detach(), tensor_file(path, tid))
    saving.write(structure, path)
    for stale in folder.glob("tensor_*.pt"):
        number = stale.stem.removeprefix("tensor_")
        if number.isdecimal() and int(number) >= len(files):
            stale.unlink()


def save(
    data: Any,
    path: str | os.PathLike[str],
    master_only: bool = True,
    global_master: bool = False,
) -> None:
    """`write` on one rank per host (`global_master`: of the job), computed on every rank.

    Call it on every rank; there is no barrier.
    """
    data = saving.compute(data)
    if not master_only or ordinals.is_master_ordinal(local=not global_master):
        write(data, path)


def _references(tensors: list[torch.Tensor], files: list[torch.Tensor]) -> list[TensorReference]:
    """One reference per tensor; wrappers of the same memory get the same number."""
    numbers: dict[Any, int] = {}
    for tensor in tensors:
        if saving.memory_of(tensor) not in numbers:
            numbers[saving.memory_of(tensor)] = len(files)
            files.append(tensor)
    return [TensorReference(numbers[saving.memory_of(tensor)]) for tensor in tensors]


def read(path: str | os.PathLike[str]) -> Any:
    """The data that `write` wrote, with CPU tensors.

    Raises CheckpointError where the structure or one of its tensors is not there. The structure
    is unpickled: read only files you trust.
    """
    structure = _load(path, Path(path))
    loaded: dict[int, torch.Tensor] = {}

    def tensor_of(reference: TensorReference) -> torch.Tensor:
        if reference.tid not in loaded:
            loaded[reference.tid] = _load(path, tensor_file(path, reference.tid))
        return loaded[reference.tid]

    return for_each_instance_rewrite(
        structure, lambda v: isinstance(v, TensorReference), tensor_of, keep_tuples=True
    )


def _load(path: str | os.PathLike[str], file: Path) -> Any:
    try:
        return torch.load(file, weights_only=False)
    except OSError as error:
        raise CheckpointError(
            f"xser.load: {os.fspath(path)} needs {file}, which cannot be read ({error}); copy the"
            " checkpoint together with its .tensors folder"
        ) from error
