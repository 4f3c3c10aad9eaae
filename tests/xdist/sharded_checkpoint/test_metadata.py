"""The metadata of a checkpoint: read as it was written, by us or torch_xla, and nothing else."""

import importlib
import os
import pickle
from datetime import datetime
from typing import Any

import pytest
import torch
from sharded_jobs import folders, manager_of, warned
from spmd_process import SpmdProcess

from torch_xdist.sharded_checkpoint.manager import (
    MANAGER_METADATA_FILE,
    CheckpointMetadata,
    read_metadata,
    written_metadata,
)

four = SpmdProcess(4)


HALVES = {
    "no metadata": None,
    "empty metadata": b"",
    "half of ours": written_metadata(CheckpointMetadata(3, datetime(2024, 1, 2)))[:-5],
    "half of a pickle": pickle.dumps(datetime(2024, 1, 2))[:-5],
    "without a step": b'{"ts": "2024-01-02T00:00:00"}',
    "not a number": b'{"step": null, "ts": "2024-01-02T00:00:00"}',
    "another pickle": pickle.dumps(datetime(2024, 1, 2)),
    "a pickle of no class": b"\x80\x04).",
}


@pytest.mark.parametrize("content", HALVES.values(), ids=HALVES)
@four
def test_a_checkpoint_that_is_half_written_is_ignored_with_a_warning(tmp_path, content):
    manager_of(tmp_path).save(0, {"w": torch.ones(1)})
    (tmp_path / "10").mkdir()
    if content is not None:
        (tmp_path / "10" / MANAGER_METADATA_FILE).write_bytes(content)
    with warned() as texts:
        assert manager_of(tmp_path).all_steps() == [0]
    assert texts == [f"Ignoring invalid checkpoints: ['{tmp_path / '10'}']"]


@four
def test_a_file_beside_the_checkpoints_is_ignored_with_a_warning(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with warned() as texts:
        assert manager_of(tmp_path).all_steps() == []
    assert texts == [f"Ignoring invalid checkpoints: ['{tmp_path / 'notes.txt'}']"]
    assert folders(tmp_path) == ["notes.txt"]


@four
def test_what_a_half_written_step_left_is_gone_when_it_is_written(tmp_path):
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "left.distcp").write_bytes(b"old")
    manager = manager_of(tmp_path)
    manager.save(0, {"w": torch.ones(1)})
    assert "left.distcp" not in folders(tmp_path / "0")


def pickled_by_torch_xla(step: int, ts: Any) -> bytes:
    """The content of torch_xla's file: an instance of a dataclass of its module."""
    module = importlib.import_module("torch_xla.experimental.distributed_checkpoint.manager")
    theirs = type("_CheckpointMetadata", (), {"__module__": module.__name__})
    found = theirs()
    found.step, found.ts = step, ts
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_CheckpointMetadata", theirs)
        return pickle.dumps(found)


def test_metadata_is_read_as_it_was_written():
    metadata = CheckpointMetadata(3, datetime(2024, 1, 2, 3, 4, 5, 678))
    assert read_metadata(written_metadata(metadata)) == metadata


def test_the_metadata_of_torch_xla_is_read():
    content = pickled_by_torch_xla(3, datetime(2024, 1, 2))
    assert b"torch_xla.experimental.distributed_checkpoint.manager" in content
    assert read_metadata(content) == CheckpointMetadata(3, datetime(2024, 1, 2))


@four
def test_a_checkpoint_with_torch_xlas_metadata_is_there(tmp_path):
    manager_of(tmp_path).save(0, {"w": torch.ones(1)})
    content = pickled_by_torch_xla(0, datetime(2024, 1, 2))
    (tmp_path / "0" / MANAGER_METADATA_FILE).write_bytes(content)
    manager = manager_of(tmp_path)
    found = {"w": torch.zeros(1)}
    manager.restore(0, found)
    assert found["w"].item() == 1


def test_metadata_with_another_global_in_it_is_refused():
    content = pickled_by_torch_xla(3, os.getcwd)
    with pytest.raises(
        pickle.UnpicklingError, match=r"posix.getcwd is not part of a checkpoint's metadata"
    ):
        read_metadata(content)


def test_a_pickle_of_something_else_is_no_metadata():
    with pytest.raises(pickle.UnpicklingError, match="a datetime is no checkpoint's metadata"):
        read_metadata(pickle.dumps(datetime(2024, 1, 2)))
