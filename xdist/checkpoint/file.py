"""One file of a checkpoint: tensors in the safetensors layout, streamed, with checksums.

Any safetensors reader opens it. Beside the user's tensors it holds two of bytes: `__state__`, the
structure around the tensors as torch.save wrote it (loaded with weights_only), and `__checksums__`,
the CRC-32 of every other tensor in file order, then that of the header. It is written front to back
with one tensor in memory at a time, and renamed into place when it is on the disk.
"""

import io
import json
import mmap
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from torch_xdist.errors import CheckpointError
from torch_xdist.files.saving import atomic_file, host_bytes

STATE, CHECKSUMS = "__state__", "__checksums__"
# {MARK: name, "rank": .., "dtype": .., "shape": ..} in the structure; part of the format, so it
# stays as it is whatever modules are called.
MARK = "torch_xdist.tensor"
_LENGTH = 8
_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.uint16: "U16",
    torch.uint32: "U32",
    torch.uint64: "U64",
    torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor to write: its type, and how to get the bytes of its values, uint8 [nbytes]."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]

    @property
    def nbytes(self) -> int:
        """Bytes of the values."""
        return self.dtype.itemsize * int(np.prod(self.shape, dtype=np.int64))


def entry(tensor: torch.Tensor) -> Entry:
    """An entry of a tensor that is read when its turn comes."""
    return Entry(tensor.dtype, tuple(tensor.shape), lambda: host_bytes(tensor))


def packed(structure: Any) -> bytes:
    """A structure of plain data as bytes. Raises CheckpointError for what cannot be loaded back."""
    file = io.BytesIO()
    try:
        torch.save(structure, file)
        torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    except Exception as error:
        raise CheckpointError(
            f"checkpoint: a value cannot be saved ({str(error).splitlines()[0]}); give plain data,"
            " tensors and objects with state_dict and load_state_dict"
        ) from error
    return file.getvalue()


def write(
    path: Path, structure: Any, entries: Mapping[str, Entry], facts: Mapping[str, str]
) -> None:
    """Write a file, whole or not at all.

    Args:
        path: where; the folder exists.
        structure: plain data around the tensors.
        entries: the tensors by name.
        facts: strings for the header.

    Raises: CheckpointError that names the path where it cannot be written.
    Cost: host memory of the largest tensor.
    """
    plain = packed(structure)
    # The widest elements come first, so that every tensor is aligned in the mapped file.
    everything = dict(sorted(entries.items(), key=lambda item: -item[1].dtype.itemsize))
    everything[STATE] = _bytes_entry(plain)
    header = _header(everything, facts)
    with atomic_file(path) as partial, partial.open("wb") as file:
        file.write(len(header).to_bytes(_LENGTH, "little"))
        file.write(header)
        sums = [_write_values(file, name, item) for name, item in everything.items()]
        file.write(np.array([*sums, zlib.crc32(header)], "<u4").tobytes())


def _bytes_entry(content: bytes) -> Entry:
    return Entry(torch.uint8, (len(content),), lambda: np.frombuffer(content, np.uint8))


def _header(entries: Mapping[str, Entry], facts: Mapping[str, str]) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt", **facts}}
    start = 0
    for name, item in entries.items():
        header[name] = _placed(item, start)
        start += item.nbytes
    size = 4 * (len(entries) + 1)
    header[CHECKSUMS] = {"dtype": "U8", "shape": [size], "data_offsets": [start, start + size]}
    text = json.dumps(header, separators=(",", ":")).encode()
    # Spaces up to a multiple of 64: the values after it start aligned.
    return text + b" " * (-(len(text) + _LENGTH) % 64)


def _placed(item: Entry, start: int) -> dict[str, Any]:
    name = _NAMES.get(item.dtype)
    # Types the format does not know are bytes to it; the structure has their type and shape.
    kind, shape = (name, list(item.shape)) if name else ("U8", [item.nbytes])
    return {"dtype": kind, "shape": shape, "data_offsets": [start, start + item.nbytes]}


def _write_values(file: BinaryIO, name: str, item: Entry) -> int:
    values = item.read().data
    if values.nbytes != item.nbytes:
        raise CheckpointError(
            f"checkpoint: tensor {name!r} has {values.nbytes} bytes, and {item.nbytes} were"
            " announced; do not resize a tensor while it is saved"
        )
    file.write(values)
    return zlib.crc32(values)


class File:
    """A checkpoint file, mapped into memory: values are read from the disk when they are used.

    Raises CheckpointError that names the file and what is wrong with it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            length = int.from_bytes(self._map[:_LENGTH], "little")
            self._start = _LENGTH + length
            self._header = json.loads(self._map[_LENGTH : self._start])
            self._sums = self._checksums()
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise self._corrupt(f"its header cannot be read ({error})") from error
        if self._sums[-1] != zlib.crc32(self._map[_LENGTH : self._start]):
            raise self._corrupt("its header does not have the checksum that was written")

    def _checksums(self) -> np.ndarray:
        start, stop = self._header[CHECKSUMS]["data_offsets"]
        if len(self._map) != self._start + stop:
            raise ValueError(f"{len(self._map)} bytes of {self._start + stop}")
        return np.frombuffer(self._map[self._start + start : self._start + stop], "<u4")

    def _corrupt(self, what: str) -> CheckpointError:
        return CheckpointError(
            f"checkpoint: {self._path} is corrupt: {what}; restore an earlier step"
        )

    @property
    def facts(self) -> dict[str, str]:
        """The strings of the header."""
        return self._header["__metadata__"]

    def names(self) -> Iterator[str]:
        """The tensors, in file order."""
        return (name for name in self._header if name not in ("__metadata__", CHECKSUMS))

    def verify(self) -> None:
        """Compare the tensors with their checksums. Raises CheckpointError where one differs."""
        for name, expected in zip(self.names(), self._sums):
            with memoryview(self._map) as view:
                start, stop = self._span(name)
                found = zlib.crc32(view[start:stop])
            if found != expected:
                raise self._corrupt(f"{name!r} has checksum {found:08x} and not {expected:08x}")

    def structure(self) -> Any:
        """The plain data, with a marker dict in the place of each tensor."""
        start, stop = self._span(STATE)
        return torch.load(io.BytesIO(self._map[start:stop]), weights_only=True)

    def tensor(self, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
        """A CPU tensor over the mapped file; writing to it does not change the file."""
        if name not in self._header:
            raise self._corrupt(f"it has no tensor {name!r}")
        start, stop = self._span(name)
        if start == stop:
            return torch.empty(shape, dtype=dtype)
        raw = torch.frombuffer(self._map, dtype=torch.uint8, count=stop - start, offset=start)
        return raw.view(dtype).reshape(shape)

    def _span(self, name: str) -> tuple[int, int]:
        start, stop = self._header[name]["data_offsets"]
        return self._start + start, self._start + stop
