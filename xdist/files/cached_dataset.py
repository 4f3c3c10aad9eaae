"""A dataset whose samples are kept on disk as they are first read.

The files are torch_xla's: `<digits of the index as folders>/<index>.pt` beside a METADATA file.
"""

import gzip
import io
import json
import os
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from torch_xdist.errors import CheckpointError
from torch_xdist.files import saving

_METADATA = "METADATA"


class CachedDataset(Dataset):
    """Reads a sample from `path`, or from `data_set` and then keeps it there.

    Args:
        data_set: the source; None to read a filled cache only.
        path: the cache folder.
        max_files_per_folder: how many samples share a folder.
        compress: gzip the files.

    Raises:
        RuntimeError: an absent sample without a source.
        CheckpointError: a cache without METADATA and without a source, or of another size.
    """

    def __init__(
        self,
        data_set: Any,
        path: str | os.PathLike[str],
        max_files_per_folder: int = 1000,
        compress: bool = True,
    ) -> None:
        self._data_set = data_set
        self._path = Path(path)
        if data_set is None:
            metadata = self._read_metadata()
            self._count = metadata["count"]
            self._per_folder = metadata["max_files_per_folder"]
            self._compress = metadata["compress"]
            return
        self._count, self._per_folder = len(data_set), max_files_per_folder
        self._compress = compress
        self._write_metadata()

    def _read_metadata(self) -> dict[str, Any]:
        try:
            return json.loads((self._path / _METADATA).read_text())
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"CachedDataset: {self._path} holds no cache ({error}); give the source dataset to"
                " fill it, or the right folder"
            ) from error

    def _write_metadata(self) -> None:
        facts = {
            "count": self._count,
            "compress": self._compress,
            "max_files_per_folder": self._per_folder,
        }
        if (self._path / _METADATA).exists() and self._read_metadata() != facts:
            raise CheckpointError(
                f"CachedDataset: {self._path} was made with {self._read_metadata()}, not with"
                f" {facts}; remove the folder or name another"
            )
        self._path.mkdir(parents=True, exist_ok=True)
        with saving.atomic_file(self._path / _METADATA) as partial:
            partial.write_text(json.dumps(facts))

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        file = self._file(index)
        try:
            data = file.read_bytes()
        except FileNotFoundError:
            return self._fill(index, file)
        plain = gzip.decompress(data) if self._compress else data
        return torch.load(io.BytesIO(plain), weights_only=False)

    def _fill(self, index: int, file: Path) -> Any:
        if self._data_set is None:
            raise RuntimeError(
                f"Source dataset not provided and sample {index} is missing from cache folder"
                f" {self._path}"
            )
        sample = self._data_set[index]
        buffer = io.BytesIO()
        torch.save(sample, buffer)
        data = gzip.compress(buffer.getvalue()) if self._compress else buffer.getvalue()
        file.parent.mkdir(parents=True, exist_ok=True)
        with saving.atomic_file(file) as partial:
            partial.write_bytes(data)
        return sample

    def _file(self, index: int) -> Path:
        if not 0 <= index < self._count:
            raise IndexError(f"CachedDataset: sample {index} of {self._count}; counted from 0")
        digits = []
        rest = index // self._per_folder
        while rest:
            digits.append(str(rest % self._per_folder))
            rest //= self._per_folder
        return self._path.joinpath(*(digits or ["0"]), f"{index}.pt")

    def warmup(self) -> None:
        """Read every sample once, so that all are kept."""
        for index in range(self._count):
            self[index]
