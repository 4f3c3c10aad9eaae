"""SPMD mode: one device for all, and who cannot have it."""

import warnings

import pytest
import torch
import torch.distributed as dist
from spmd_process import SpmdProcess

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from torch_xdist import world
from torch_xdist.system.rank import Rank

four = SpmdProcess(4)
plain = SpmdProcess(4, spmd=False)
started = SpmdProcess(4, spmd=False)
alone = SpmdProcess(1, spmd=False)


@four
def test_there_is_one_device_and_the_hardware_has_four():
    assert xr.is_spmd()
    assert (xr.addressable_device_count(), xr.global_device_count(), xr.world_size()) == (1, 1, 1)
    assert xr.addressable_runtime_device_count() == xr.global_runtime_device_count() == 4
    assert xm.get_xla_supported_devices() == ["xla:0"]
    assert torch_xla._XLAC._xla_get_all_runtime_devices() == [f"CPU:{n}" for n in range(4)]
    assert torch_xla._XLAC._xla_num_runtime_devices() == 4
    assert not torch_xla._XLAC._xla_get_auto_sharding()


@plain
def test_outside_of_it_each_device_is_one():
    assert not xr.is_spmd()
    assert xr.addressable_runtime_device_count() == xr.global_runtime_device_count() == 4
    assert torch_xla._XLAC._xla_num_runtime_devices() == 4
    assert torch_xla._XLAC._xla_get_all_runtime_devices() == [f"CPU:{n}" for n in range(4)]


@four
def test_a_process_group_of_one_process_per_device_is_refused():
    with pytest.raises(AssertionError, match="XLA backend is not supported with SPMD, where XLA"):
        dist.init_process_group("xla", init_method="xla://")


def test_a_function_of_spawn_cannot_stand_for_all(monkeypatch):
    spawned = Rank(rank=1, world_size=4, launcher="xla-run", task="function")
    monkeypatch.setattr(world, "current", lambda: spawned)
    with pytest.raises(RuntimeError, match=r"use_spmd: this function is rank 1 of 4 of xmp.spawn"):
        xr.use_spmd()


@alone
def test_a_process_that_used_a_device_by_itself_cannot_join_others():
    torch.ones(2).to("xla")
    world._current = Rank(world_size=2, launcher="torchrun")
    with pytest.raises(
        RuntimeError, match=r"this process is 0 of 2, and has used a device already"
    ):
        xr.use_spmd()


@four
def test_programs_count_as_replicated():
    from torch_xdist import metrics

    torch.ones(3).to("xla").sum().item()
    assert metrics.counter_value("ExecuteReplicated") == 1
    assert metrics.metric_data("ExecuteReplicatedTime")[0] == 1
    assert metrics.metric_data("ExecuteTime") is None
    assert metrics.metric_data("InboundData")[1] == 4


@started
def test_a_process_that_made_no_tensor_yet_enters_without_a_warning():
    assert len(xm.get_xla_supported_devices()) == 4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        xr.use_spmd()
    assert xm.get_xla_supported_devices() == ["xla:0"]
    xr.use_spmd()
    assert xr.global_runtime_device_count() == 4
