"""Private calls about devices, the runtime and the reports."""

import pytest
import torch

import torch_xla
import torch_xla.debug.metrics as met
import torch_xla.runtime as xr
from torch_xdist.errors import DeviceError
from torch_xla import _XLAC


def test_the_runtime_is_told():
    _XLAC._init_computation_client()
    _XLAC._init_xla_lazy_backend()
    assert _XLAC._xla_runtime_is_initialized()
    torch.ones(3, device="xla").add(1).tolist()
    assert _XLAC._xla_computation_cache_is_initialized()
    assert _XLAC._xla_get_num_cached_compilation_graph() > 0
    assert (_XLAC._xla_num_devices(), _XLAC._xla_num_global_devices()) == (1, 1)
    assert (_XLAC._xla_get_process_index(), _XLAC._xla_get_num_processes()) == (0, 1)
    assert _XLAC._xla_get_platform_version() and _XLAC._xla_get_mat_mul_precision()
    _XLAC._prepare_to_exit()


def test_devices_are_told():
    assert _XLAC._xla_get_all_devices() == ["CPU:0"]
    assert _XLAC._xla_set_default_device("xla:0") == "xla:0"
    assert _XLAC._xla_get_default_device_ordinal() == _XLAC._xla_get_device_ordinal("xla:0") == 0
    assert _XLAC._xla_get_device_hw_type(torch.ones(1, device="xla")) == "CPU"
    assert _XLAC._xla_device_kind("xla:0") == _XLAC._xla_device_kind()
    attributes = _XLAC._xla_get_device_attributes("xla:0")
    assert _XLAC._xla_get_all_device_attributes() == [attributes]
    assert _XLAC._xla_memory_info("xla:0") is not None


def test_counters_by_their_private_names():
    met.clear_all()
    _XLAC._xla_increment_counter("Ours", 3)
    _XLAC._xla_increment_counter("aten::nothing", 1)
    assert met.counter_value("Ours") == 3
    assert _XLAC._get_executed_fallback_ops() == ["aten::nothing"]
    assert "aten::nothing" in _XLAC._short_xla_metrics_report([], [])
    _XLAC._clear_xla_counters()
    _XLAC._clear_xla_metrics()
    assert _XLAC._xla_counter_names() == _XLAC._xla_metric_names() == []


def test_live_tensors_run_without_the_end_of_a_step():
    met.clear_all()
    x = torch.ones(2, device="xla") + 1
    _XLAC._xla_sync_live_tensors("xla:0", [], wait=True)
    assert x.value.buffer is not None and met.counter_value("MarkStep") is None


def test_where_values_lie():
    x = torch.ones(4).to("xla")
    assert _XLAC._unsafe_buffer_pointer(x) > 0
    assert _XLAC._xla_get_tensor_view_alias_id(x) == _XLAC._xla_get_tensor_view_alias_id(x[1:])


@pytest.mark.parametrize("name", ["_unsafe_buffer_pointer", "_xla_get_tensor_view_alias_id"])
def test_a_tensor_of_the_cpu_is_refused(name):
    with pytest.raises(DeviceError, match=f"{name}: .*cpu"):
        getattr(_XLAC, name)(torch.ones(2))


def test_modes_by_their_private_names():
    assert _XLAC._get_use_eager_mode() is False
    _XLAC._set_use_eager_mode(True)
    assert _XLAC._get_use_eager_mode()
    _XLAC._set_use_eager_mode(False)
    _XLAC._set_current_graph_name("mine")
    assert _XLAC._get_current_graph_name() == "mine"
    _XLAC._set_current_graph_name("")


def test_sessions_of_the_shape_detector():
    _XLAC._dynamic_shape_detector_set_max_different_graphs(1)
    assert _XLAC._dynamic_shape_detector_get_max_different_graphs() == 1
    torch_xla.sync()
    x, y = torch.ones(4).to("xla"), torch.ones(5).to("xla")

    def session(tensor):
        _XLAC._dynamic_shape_detector_start_session("f")
        result = tensor + tensor
        _XLAC._dynamic_shape_detector_end_session()
        torch_xla.sync()
        return result

    session(x)
    session(x)
    with pytest.raises(RuntimeError, match="Maximum number of different graphs allowed per functi"):
        session(y)
    _XLAC._dynamic_shape_detector_remove_session("f")
    session(y)
    _XLAC._dynamic_shape_detector_end_session()


def test_a_process_that_is_alone_is_the_first_of_one():
    assert (xr.local_ordinal(), xr.host_index(), xr.local_process_count()) == (0, 0, 1)
    assert xr.local_device_count() == xr.addressable_device_count() == 1
    (attributes,) = xr.global_runtime_device_attributes()
    assert attributes == xr.runtime_device_attributes("xla:0") | {"name": attributes["name"]}
    assert xr.get_master_ip() == "127.0.0.1"
