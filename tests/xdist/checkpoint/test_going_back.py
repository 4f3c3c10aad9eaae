"""A job that goes on from an older checkpoint than the newest."""

import time

import pytest

import torch_xla.core.xla_model as xm
from torch_xdist.checkpoint import CheckpointManager, CorruptCheckpointWarning
from torch_xdist.checkpoint import folder as folders
from torch_xdist.launcher.ways_in.spawn import spawn
from torch_xdist.progress import Progress


def test_a_job_that_went_back_to_an_older_step_saves_the_later_ones_again(tmp_path):
    with CheckpointManager(tmp_path) as manager:
        for step in (1, 2, 3):
            manager.save(step, value=f"first {step}")
    with CheckpointManager(tmp_path) as manager:
        assert manager.restore(1).values == {"value": "first 1"}
        assert manager.steps() == [1, 2, 3], "looking at an older step changes nothing"
        manager.save(2, value="second 2")
        manager.wait()
        assert manager.steps() == [1, 2]
        assert manager.restore().values == {"value": "second 2"}
        manager.save(3, value="second 3")
    assert sorted(path.name for path in tmp_path.glob("abandoned-*")) == [
        *("abandoned-step-00000002.1", "abandoned-step-00000003.1")
    ]
    with CheckpointManager(tmp_path) as manager:
        manager.restore(1)
        manager.save(3, value="third 3")
    assert (tmp_path / "abandoned-step-00000003.2").is_dir()


def test_a_step_that_was_skipped_for_its_corrupt_file_can_be_saved_again(tmp_path):
    with CheckpointManager(tmp_path) as manager:
        for step in (1, 2):
            manager.save(step, value=step)
    file = folders.rank_file(tmp_path, 2, 0, 1)
    file.write_bytes(file.read_bytes()[:-1])
    with CheckpointManager(tmp_path) as manager:
        with pytest.warns(CorruptCheckpointWarning):
            assert manager.restore().step == 1
        manager.save(2, value="again")
        manager.wait()
        assert manager.restore().values == {"value": "again"}


def test_the_steps_of_a_restored_job_count_on_from_its_checkpoint(tmp_path, monkeypatch):
    progress = Progress(step=7)
    monkeypatch.setattr("torch_xdist.checkpoint.manager.PROGRESS", progress)
    with CheckpointManager(tmp_path) as manager:
        assert manager.restore() is None
        assert (progress.step, progress.resumed) == (7, 0), "it has found nothing"
        manager.save(40)
        manager.wait()
        manager.restore()
    assert (progress.step, progress.resumed) == (40, 40)


def goes_back(rank, folder):
    """Two ranks go back to step 1 and save step 2 again; the first is late for it."""
    with CheckpointManager(folder) as manager:
        for step in (1, 2):
            manager.save(step, value=f"first {step} of {rank}")
    xm.rendezvous("all have saved")
    with CheckpointManager(folder) as manager:
        manager.restore(1)
        if rank == 0:
            time.sleep(1)
        manager.save(2, value=f"second 2 of {rank}")
    xm.rendezvous("all have saved again")
    with CheckpointManager(folder) as manager:
        return manager.restore().values["value"]


def test_no_rank_saves_a_step_again_before_the_old_one_is_put_aside(tmp_path):
    found = spawn(goes_back, args=(str(tmp_path),), nprocs=2)
    assert found == ["second 2 of 0", "second 2 of 1"]
    old = tmp_path / "abandoned-step-00000002.1"
    assert len(list(old.glob("rank-*.safetensors"))) == 2
