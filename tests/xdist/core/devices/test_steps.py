"""The ends of steps, and waiting for the device."""

import pytest
import torch
from device_ranks import on_threads
from spmd_process import SpmdProcess

import torch_xla
import torch_xla.debug.metrics as met
from torch_xdist.core.devices import steps
from torch_xdist.core.run import cuts
from torch_xdist.progress import PROGRESS

four_devices = SpmdProcess(4)
two_processes = SpmdProcess(2, processes=2)


def product():
    """A tensor whose program takes a while, recorded."""
    x = torch.ones(600, 600, device="xla")
    for _ in range(20):
        x = x @ x * 1e-3
    return x


def long_product():
    """The same once more: the first run of a program is waited for."""
    kept = product()
    torch_xla.sync()
    del kept
    return product()


@pytest.mark.on_cpu
def test_the_first_run_of_a_program_is_done_when_its_step_ends():
    x = product() + 0.25
    torch_xla.sync()
    assert x.value.buffer.is_ready()


def test_settling_runs_what_is_pending_and_ends_no_step():
    torch_xla.sync()
    before, step = met.counter_value("xla::_to_cpu") or 0, PROGRESS.step
    x = torch.ones(2, device="xla") + 1
    steps.settle("rendezvous")
    assert cuts.LOG[-1].reason == "rendezvous" and x.value.buffer.is_ready()
    assert met.counter_value("xla::_to_cpu") - before == 1
    assert PROGRESS.step == step


def test_settling_compiles_nothing_of_the_users_and_leaves_closures_alone():
    steps.settle("rendezvous")
    seen = []
    torch_xla.core.xla_model.add_step_closure(lambda: seen.append(1))
    names = ("UncachedCompile", "CachedCompile", "MarkStep")
    before = [met.counter_value(name) for name in names]
    steps.settle("rendezvous")
    assert [met.counter_value(name) for name in names] == before and seen == []
    torch_xla.sync()
    assert seen == [1]


@pytest.mark.parametrize("is_launched", [True, False])
def test_the_device_is_done_when_settling_returns(is_launched):
    x = long_product()
    if is_launched:
        torch_xla.sync()
    steps.settle("rendezvous")
    assert x.value.buffer.is_ready()


@four_devices
def test_every_device_behind_the_logical_one_is_done():
    x = long_product()
    torch_xla.sync()
    steps.settle("rendezvous")
    assert x.value.buffer.is_ready()


@two_processes
def test_processes_that_are_one_rank_settle_each_by_itself():
    x = long_product()
    before = met.counter_value("xla::_to_cpu") or 0
    steps.settle("rendezvous")
    assert x.value.buffer.is_ready()
    assert met.counter_value("xla::_to_cpu") - before == 1


def settle_with_a_failure(rank, size):
    """What comes out where the ranks' collectives do not fit."""
    import torch

    import torch_xla.core.xla_model as xm
    from torch_xdist.core.devices import steps

    total = xm.all_reduce("sum", torch.ones(70000 + rank, device="xla"))
    try:
        steps.settle("rendezvous")
    except Exception as error:
        return type(error).__name__, total.shape[0]
    return None


@pytest.mark.on_cpu
def test_what_failed_on_the_device_comes_out():
    found = on_threads(2, settle_with_a_failure)
    assert found == [("MismatchError", 70000), ("MismatchError", 70001)]
