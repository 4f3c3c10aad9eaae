"""SIGTERM: a checkpoint is due, and the script's handler is called."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from sharded_jobs import manager_of, warned
from spmd_process import SpmdProcess

from torch_xdist.errors import CheckpointError
from torch_xdist.sharded_checkpoint import preemption
from torch_xla import _XLAC

four = SpmdProcess(4)


def told() -> None:
    """SIGTERM to this very thread: to the process, a kernel may give it to any, and later."""
    signal.raise_signal(signal.SIGTERM)


@contextmanager
def handler_of_the_script() -> Iterator[list[int]]:
    """The signals that a handler of the script's own was called with."""
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    try:
        yield seen
    finally:
        preemption.deactivate()
        signal.signal(signal.SIGTERM, before)


@four
def test_after_sigterm_a_checkpoint_is_due_at_any_step(tmp_path):
    with handler_of_the_script():
        manager = manager_of(tmp_path, chkpt_on_preemption=True)
        assert not manager.save(3, {"w": torch.ones(1)})
        told()
        with warned() as texts:
            assert manager.save(4, {"w": torch.ones(1)})
    assert texts == ["Preemption sync point reached at step 4. Triggering a checkpoint."]
    assert manager.all_steps() == [4]


@four
def test_save_async_writes_after_sigterm_too(tmp_path):
    with handler_of_the_script():
        manager = manager_of(tmp_path, chkpt_on_preemption=True)
        told()
        assert manager.reached_preemption(4)
        assert manager.save_async(4, {"w": torch.ones(1)})
        manager.join()
    assert manager.all_steps() == [4]


@four
def test_sigterm_still_calls_the_handler_of_the_script(tmp_path):
    with handler_of_the_script() as seen:
        manager_of(tmp_path, chkpt_on_preemption=True)
        told()
        assert seen == [signal.SIGTERM]


@four
def test_the_process_survives_sigterm_where_nothing_handled_it_before(tmp_path):
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        manager = manager_of(tmp_path, chkpt_on_preemption=True)
        told()
        assert manager.should_save(3)
        preemption.deactivate()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        preemption.deactivate()
        signal.signal(signal.SIGTERM, before)


@four
def test_several_managers_call_the_handler_of_the_script_once(tmp_path):
    with handler_of_the_script() as seen:
        manager_of(tmp_path / "a", chkpt_on_preemption=True)
        manager_of(tmp_path / "b", chkpt_on_preemption=True)
        told()
        assert seen == [signal.SIGTERM]


@four
def test_deactivate_gives_sigterm_back_and_forgets_that_it_came():
    with handler_of_the_script() as seen:
        own = signal.getsignal(signal.SIGTERM)
        preemption.activate()
        assert signal.getsignal(signal.SIGTERM) is not own
        told()
        assert preemption.reached()
        preemption.deactivate()
        assert signal.getsignal(signal.SIGTERM) is own
        assert not preemption.reached()
        told()
        assert seen == [signal.SIGTERM, signal.SIGTERM]


@four
def test_a_manager_that_is_told_to_leaves_sigterm_alone(tmp_path):
    with handler_of_the_script():
        own = signal.getsignal(signal.SIGTERM)
        manager_of(tmp_path, chkpt_on_preemption=False)
        assert signal.getsignal(signal.SIGTERM) is own


@four
def test_the_private_names_take_note_of_sigterm_and_give_it_back():
    with handler_of_the_script():
        own = signal.getsignal(signal.SIGTERM)
        _XLAC._ensure_xla_coordinator_initialized(0, 1, "localhost")
        with pytest.raises(CheckpointError, match="_sync_point_reached: nobody takes note of SIGT"):
            _XLAC._sync_point_reached(1)
        _XLAC._activate_preemption_sync_manager()
        assert not _XLAC._sync_point_reached(1)
        told()
        assert _XLAC._sync_point_reached(2)
        _XLAC._deactivate_preemption_sync_manager()
        assert signal.getsignal(signal.SIGTERM) is own
