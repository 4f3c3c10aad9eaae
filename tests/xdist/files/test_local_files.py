"""Files by path; Google storage is refused by name."""

import pytest

from torch_xdist.errors import CheckpointError
from torch_xdist.files import local_files as files


def test_local_files_are_written_read_listed_and_removed(tmp_path):
    path = tmp_path / "deep" / "file"
    files.generic_write("text", path, makedirs=True)
    assert files.generic_read(path) == b"text" == files.read(path)
    with files.generic_open(path) as file:
        assert file.read() == "text"
    (blob,) = files.list(tmp_path / "deep")
    assert (blob.size, blob.isdir, blob.path) == (4, False, str(path))
    assert files.generic_glob(str(tmp_path / "*" / "f*")) == [str(path)]
    files.write(path, b"bytes")
    assert files.stat(path).size == 5
    files.remove(path)
    files.rmtree(tmp_path / "deep")
    assert not (tmp_path / "deep").exists()


def test_google_storage_is_refused():
    assert files.is_gcs_path("gs://bucket/x") and not files.is_gcs_path("x")
    with pytest.raises(CheckpointError, match="gs://bucket/x lies in Google storage; mount"):
        files.read("gs://bucket/x")
