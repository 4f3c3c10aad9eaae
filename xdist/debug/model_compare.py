"""Write tensors of two runs into folders, and say where the runs part.

`configure` names the folder, `save` writes one tensor as `NAME.ID` (in `step-N/` with a step), and
`compare` reads two folders side by side.
"""

import itertools
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import torch

from torch_xdist import settings
from torch_xdist.errors import CheckpointError
from torch_xdist.files import saving

_lock = threading.Lock()
_folder: Path | None = None
_numbers: dict[Path, Iterator[int]] = {}


def configure(save_dir: str | os.PathLike[str]) -> None:
    """Write into this folder from now on; default MODELCMP_SAVEDIR."""
    global _folder
    _folder = Path(save_dir)


def _save_folder() -> Path:
    if _folder is not None:
        return _folder
    named = settings.getenv_as("MODELCMP_SAVEDIR", str)
    if named is None:
        raise CheckpointError(
            "model_comparator.save: no folder is known; call configure(save_dir), or set"
            " MODELCMP_SAVEDIR"
        )
    return Path(named)


def save(name: str | None, tensor: torch.Tensor, step: int | None = None) -> None:
    """Write one tensor; the n-th one of a name gets the number n, counted from 0.

    Args:
        name: None: the caller's file and line, "train.py.l12".
    """
    folder = _save_folder()
    if name is None:
        caller = sys._getframe(1)
        name = f"{Path(caller.f_code.co_filename).name}.l{caller.f_lineno}"
    if step is not None:
        folder = folder / f"step-{step}"
    with _lock:
        number = next(_numbers.setdefault(folder / name, itertools.count()))
        folder.mkdir(parents=True, exist_ok=True)
    saving.write(tensor.detach(), folder / f"{name}.{number}")


def compare_tensors(
    tensor1: torch.Tensor,
    tensor2: torch.Tensor,
    rtol: float = 1e-05,
    atol: float = 1e-08,
    max_diffs: int = 25,
) -> str:
    """The differences of two tensors in words, at most `max_diffs` of them; "" where none are."""
    if tensor1.shape != tensor2.shape:
        return f"Shape: {tuple(tensor1.shape)} vs. {tuple(tensor2.shape)}"
    if tensor1.dtype != tensor2.dtype:
        return f"Type: {tensor1.dtype} vs. {tensor2.dtype}"
    wrong = ~torch.isclose(tensor1, tensor2, rtol=rtol, atol=atol, equal_nan=True)
    places = wrong.nonzero()[:max_diffs].tolist()
    return "\n".join(
        f"{place}: {tensor1[place].item()} vs. {tensor2[place].item()}"
        for place in map(tuple, places)
    )


def tensor_file_compare(
    path1: str | os.PathLike[str],
    path2: str | os.PathLike[str],
    rtol: float = 1e-05,
    atol: float = 1e-08,
    max_diffs: int = 25,
) -> str:
    """`compare_tensors` of two files."""
    left, right = (torch.load(path, map_location="cpu") for path in (path1, path2))
    return compare_tensors(left, right, rtol=rtol, atol=atol, max_diffs=max_diffs)


def compare(
    save_dir1: str | os.PathLike[str],
    save_dir2: str | os.PathLike[str],
    rtol: float = 1e-05,
    atol: float = 1e-08,
    max_diffs: int = 25,
) -> str:
    """The differences of two folders in words: absent files, then tensors; "" where none are."""
    left, right = (_files(Path(folder)) for folder in (save_dir1, save_dir2))
    report = [f"{name}: only in {save_dir1}" for name in sorted(left - right)]
    report += [f"{name}: only in {save_dir2}" for name in sorted(right - left)]
    for name in sorted(left & right):
        found = tensor_file_compare(
            Path(save_dir1) / name, Path(save_dir2) / name, rtol, atol, max_diffs
        )
        if found:
            report.append(f"{name}:\n{found}")
    return "\n".join(report)


def _files(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
