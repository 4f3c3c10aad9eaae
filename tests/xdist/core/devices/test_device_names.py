"""Devices by the names scripts of every age call them."""

import pytest
import torch

import torch_xla.core.xla_model as xm


@pytest.mark.on_cpu
def test_devices_are_counted_by_both_orders_of_arguments():
    assert xm.get_xla_supported_devices() == ["xla:0"]
    assert xm.get_xla_supported_devices(1) == xm.get_xla_supported_devices(max_devices=1)
    assert xm.get_xla_supported_devices("CPU", 1) == ["xla:0"]
    assert xm.get_xla_supported_devices("CPU", max_devices=1) == ["xla:0"]
    assert xm.get_xla_supported_devices(devkind=["TPU", "GPU"]) is None
    assert xm.get_xla_supported_devices(None, 1) == ["xla:0"]
    with pytest.raises(TypeError, match="3 arguments; give it max_devices, or devkind and max"):
        xm.get_xla_supported_devices("CPU", 1, 2)


def test_a_device_has_one_context_for_what_scripts_keep():
    context = xm._get_device_context()
    context.steps = 3
    assert xm._get_device_context("xla:0") is context and context.device == "xla:0"
    assert xm.DeviceContext("xla:1").device == "xla:1"


def test_memory_is_told_by_its_names():
    assert set(xm.get_memory_info()) == set(xm.MemoryInfo.__annotations__)


def test_the_sharding_of_a_loaders_input_is_named_here_too():
    import torch_xla.distributed.spmd as xs

    assert xm.ShardingSpec is xs.ShardingSpec


def test_a_tensor_tells_whether_it_is_of_the_device():
    assert xm.is_xla_tensor(torch.ones(1, device="xla"))
    assert not xm.is_xla_tensor(torch.ones(1)) and not xm.is_xla_tensor(
        torch.ones(1, device="meta")
    )
