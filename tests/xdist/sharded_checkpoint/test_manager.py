"""`CheckpointManager`: which checkpoints there are, what is in them, and when they are written."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from sharded_jobs import folders, manager_of, sharded
from spmd_process import SpmdProcess
from torch.distributed.checkpoint import CheckpointException

import torch_xla.distributed.spmd as xs
from torch_xdist.errors import CheckpointError
from torch_xla.experimental.distributed_checkpoint import CheckpointManager

four = SpmdProcess(4)


@four
def test_a_checkpoint_is_due_where_the_interval_divides_the_step(tmp_path):
    manager = manager_of(tmp_path, 3)
    assert [step for step in range(8) if manager.save(step, {"w": torch.ones(1)})] == [0, 3, 6]
    assert manager.all_steps() == [0, 3, 6]
    assert folders(tmp_path) == ["0", "3", "6"]


@four
def test_force_writes_a_checkpoint_that_is_not_due(tmp_path):
    manager = manager_of(tmp_path)
    assert not manager.save(7, {"w": torch.ones(1)})
    assert manager.save(7, {"w": torch.ones(1)}, force=True)
    assert manager.save_async(8, {"w": torch.ones(1)}, force=True)
    manager.join()
    assert manager.all_steps() == [7, 8]


@four
def test_should_save_says_what_save_would_do_and_writes_nothing(tmp_path):
    manager = manager_of(tmp_path)
    assert manager.should_save(20)
    assert not manager.should_save(21)
    assert folders(tmp_path) == []


@four
def test_more_than_max_to_keep_loses_what_was_written_first(tmp_path):
    manager = manager_of(tmp_path, max_to_keep=2)
    for step in (20, 10, 30):
        manager.save(step, {"w": torch.ones(1)})
    assert manager.all_steps() == [10, 30]
    assert folders(tmp_path) == ["10", "30"]


@four
def test_a_later_manager_knows_what_was_written_first(tmp_path):
    for step in (20, 10):
        manager_of(tmp_path).save(step, {"w": torch.ones(1)})
    manager = manager_of(tmp_path, max_to_keep=2)
    assert manager.all_steps() == [10, 20]
    manager.save(30, {"w": torch.ones(1)})
    assert manager.all_steps() == [10, 30]


@four
def test_a_step_that_is_written_again_counts_once_and_as_new(tmp_path):
    manager = manager_of(tmp_path, max_to_keep=2)
    for step, value in ((10, 1.0), (20, 2.0), (10, 3.0), (30, 4.0)):
        manager.save(step, {"w": torch.tensor([value])})
    assert manager.all_steps() == [10, 30]
    found = {"w": torch.zeros(1)}
    manager.restore(10, found)
    assert found["w"].item() == 3


@four
def test_a_folder_that_is_not_there_yet_is_made(tmp_path):
    manager_of(tmp_path / "runs" / "first").save(0, {"w": torch.ones(1)})
    assert folders(tmp_path / "runs" / "first") == ["0"]


@four
def test_a_url_serves_as_a_folder():
    manager = manager_of("memory://run", max_to_keep=1)
    manager.save(0, {"w": sharded(torch.arange(8.0))})
    manager.save(10, {"w": sharded(torch.arange(8.0) + 1)})
    again = manager_of("memory://run")
    assert again.all_steps() == [10]
    found = {"w": sharded(torch.zeros(8))}
    again.restore(10, found)
    assert found["w"].tolist() == [1, 2, 3, 4, 5, 6, 7, 8]


class Training:
    """A model with a sharded weight, and its optimizer."""

    def __init__(self, optimizer: Any) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Linear(4, 8).to("xla")
        xs.mark_sharding(self.model.weight, xs.Mesh(np.arange(4), (2, 2)), (0, 1))
        self.optimizer = optimizer(self.model.parameters())

    def step(self, count: int) -> None:
        for _ in range(count):
            self.optimizer.zero_grad()
            self.model(torch.ones(2, 4, device="xla")).square().sum().backward()
            self.optimizer.step()

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])

    def values(self) -> list[torch.Tensor]:
        states = [t for state in self.optimizer.state.values() for t in state.values()]
        return [t.detach().cpu() for t in (*self.model.parameters(), *states)]


@pytest.mark.parametrize("is_async", [False, True])
@four
def test_restore_gives_the_values_back_and_the_optimizers_state(tmp_path, is_async):
    training = Training(lambda parameters: torch.optim.Adam(parameters, lr=0.1))
    manager = manager_of(tmp_path)
    training.step(2)
    (manager.save_async if is_async else manager.save)(0, training.state())
    training.step(2)
    expected = training.values()
    manager.join()
    state = training.state()
    manager.restore(0, state)
    training.load(state)
    training.step(2)
    assert all(torch.equal(a, b) for a, b in zip(training.values(), expected, strict=True))


@four
def test_restore_gives_back_what_is_no_tensor_below_numbers_as_keys(tmp_path):
    manager = manager_of(tmp_path)
    manager.save(0, {"state": {0: {"count": 5, "w": torch.ones(2)}}})
    found = {"state": {0: {"count": 0, "w": torch.zeros(2)}}}
    manager.restore(0, found)
    assert list(found["state"]) == [0]
    assert found["state"][0]["count"] == 5


@four
def test_a_step_without_a_checkpoint_cannot_be_restored(tmp_path):
    manager = manager_of(tmp_path)
    manager.save(10, {"w": torch.ones(1)})
    with pytest.raises(
        CheckpointError, match=r"Cannot restore from untracked step 5. Valid steps are: \[10\]"
    ):
        manager.restore(5, {"w": torch.ones(1)})


@contextmanager
def nothing_is_written(manager: CheckpointManager) -> Iterator[None]:
    """Whatever is to be written waits until the end of the block."""
    with manager._writing:
        yield


@four
def test_save_async_writes_the_values_of_the_call(tmp_path):
    manager = manager_of(tmp_path)
    state = {
        "sharded": sharded(torch.ones(8)),
        "device": torch.ones(2, device="xla"),
        "cpu": torch.ones(2),
        "list": [1, 2],
        "set": {1, 2},
    }
    with nothing_is_written(manager):
        assert manager.save_async(0, state)
        for name in ("sharded", "device", "cpu"):
            state[name] += 1
        state["list"].append(3)
        state["set"].add(3)
        assert manager.all_steps() == []
    manager.join()
    manager.restore(0, state)
    assert state["sharded"].tolist() == [1] * 8
    assert state["device"].tolist() == state["cpu"].tolist() == [1, 1]
    assert state["list"] == [1, 2]
    assert state["set"] == {1, 2}


@four
def test_save_async_writes_a_sharded_tensor_in_its_parts(tmp_path):
    manager = manager_of(tmp_path)
    manager.save_async(0, {"w": sharded(torch.arange(5.0))})
    manager.join()
    metadata = dist.checkpoint.FileSystemReader(tmp_path / "0").read_metadata()
    chunks = metadata.state_dict_metadata["w"].chunks
    assert [tuple(chunk.sizes) for chunk in chunks] == [(2,), (2,), (1,)]


@four
def test_save_async_writes_nothing_that_is_not_due(tmp_path):
    manager = manager_of(tmp_path)
    assert not manager.save_async(7, {"w": torch.ones(1)})
    manager.join()
    assert manager.all_steps() == []


@four
def test_save_async_waits_while_too_many_are_not_written_yet(tmp_path):
    manager = manager_of(tmp_path, max_pending_async=2)
    state = {"w": torch.ones(1)}
    third = threading.Thread(target=manager.save_async, args=(20, state))
    with nothing_is_written(manager):
        manager.save_async(0, state)
        manager.save_async(10, state)
        third.start()
        third.join(0.3)
        assert third.is_alive()
    third.join()
    manager.join()
    assert manager.all_steps() == [0, 10, 20]


@four
def test_the_next_save_async_raises_what_writing_ended_with(tmp_path):
    manager = manager_of(tmp_path)
    manager.save_async(0, {"f": lambda: 0})
    manager._futures[0].exception()
    with pytest.raises(CheckpointException, match="lambda"):
        manager.save_async(1, {"w": torch.ones(1)})
    assert manager.save_async(10, {"w": torch.ones(1)})
    manager.join()
    assert manager.all_steps() == [10]


@four
def test_join_raises_what_writing_ended_with_once(tmp_path):
    manager = manager_of(tmp_path)
    manager.save_async(0, {"f": lambda: 0})
    with pytest.raises(CheckpointException, match="lambda"):
        manager.join()
    manager.join()


@four
def test_a_checkpoint_that_could_not_be_written_is_none_for_a_later_manager(tmp_path):
    manager = manager_of(tmp_path)
    with pytest.raises(CheckpointException, match="lambda"):
        manager.save(0, {"f": lambda: 0})
    assert manager.all_steps() == []
    assert manager_of(tmp_path).all_steps() == []


@four
def test_a_manager_needs_a_process_group(tmp_path):
    if dist.is_initialized():
        dist.destroy_process_group()
    with pytest.raises(
        CheckpointError, match=r"A process group is required: call .*init_process_group\('gloo'\)"
    ):
        CheckpointManager(str(tmp_path), 1)


@pytest.mark.parametrize(
    ("name", "value", "least"),
    [
        ("save_interval", 0, 1),
        ("save_interval", -1, 1),
        ("max_pending_async", 0, 1),
        ("max_pending_async", None, 1),
        ("max_to_keep", -1, 0),
    ],
)
@four
def test_numbers_that_cannot_be_are_errors(tmp_path, name, value, least):
    with pytest.raises(
        CheckpointError, match=f"CheckpointManager: {name} must be at least {least}, not {value}"
    ):
        manager_of(tmp_path, **{"save_interval": 1, name: value})
