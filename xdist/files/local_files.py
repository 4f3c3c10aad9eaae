"""Files by a path that may be local or `gs://...`; only local paths are read here.

torch_xla 1.5 to 2.0 read Google storage through TensorFlow. The functions keep their names; a
`gs://` path raises an error that says what to use.
"""

import builtins
import glob
import os
import shutil
from collections import namedtuple
from pathlib import Path
from typing import IO, Any

from torch_xdist.errors import CheckpointError

GcsBlob = namedtuple("GcsBlob", "path size mtime isdir")
_CLOUD = "gs://"


def is_gcs_path(path: str | os.PathLike[str]) -> bool:
    """True for a `gs://` path."""
    return os.fspath(path).startswith(_CLOUD)


def _local(path: str | os.PathLike[str]) -> Path:
    if is_gcs_path(path):
        raise CheckpointError(
            f"gcsfs: {os.fspath(path)} lies in Google storage; mount the bucket with gcsfuse, or"
            " read it with the google-cloud-storage package"
        )
    return Path(path)


def open(path: str | os.PathLike[str], mode: str = "r", encoding: str | None = None) -> IO[Any]:
    """Open a local file."""
    return builtins.open(_local(path), mode, encoding=encoding)


def list(path: str | os.PathLike[str]) -> builtins.list[GcsBlob]:
    """What a folder holds, sorted by path."""
    return [stat(item) for item in sorted(_local(path).iterdir())]


def stat(path: str | os.PathLike[str]) -> GcsBlob:
    """Path, size in bytes, time of the last change and whether it is a folder."""
    found = _local(path).stat()
    return GcsBlob(os.fspath(path), found.st_size, found.st_mtime, Path(path).is_dir())


def remove(path: str | os.PathLike[str]) -> None:
    """Remove a file."""
    _local(path).unlink()


def rmtree(path: str | os.PathLike[str]) -> None:
    """Remove a folder with all it holds."""
    shutil.rmtree(_local(path))


def read(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a file."""
    return _local(path).read_bytes()


def write(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write a file."""
    generic_write(content, path)


def generic_open(
    path: str | os.PathLike[str], mode: str = "r", encoding: str | None = None
) -> IO[Any]:
    """Open a file wherever it lies."""
    return open(path, mode, encoding)


def generic_read(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a file wherever it lies."""
    return read(path)


def generic_write(
    output_string: str | bytes, path: str | os.PathLike[str], makedirs: bool = False
) -> None:
    """Write text or bytes; with `makedirs`, make the folders above first."""
    file = _local(path)
    if makedirs:
        file.parent.mkdir(parents=True, exist_ok=True)
    data = output_string.encode() if isinstance(output_string, str) else output_string
    file.write_bytes(data)


def generic_glob(pattern: str, recursive: bool = False) -> builtins.list[str]:
    """The local paths that match a pattern."""
    return glob.glob(os.fspath(_local(pattern)), recursive=recursive)
