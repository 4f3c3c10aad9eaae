"""Each metric and counter of a step, by torch_xla's name, after what it counts."""

import pytest
import torch

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
from torch_xla import _XLAC


def total(name):
    return (met.metric_data(name) or (0,))[0]


@pytest.fixture(scope="module")
def step():
    """(what one step counted, with values; its samples), and of the same step again."""
    torch.manual_seed(0)
    host = torch.ones(17, 3)
    torch_xla.sync()
    found = []
    for _ in range(2):
        met.clear_all()
        x = host.to("xla")
        y = (x @ x.t()).sum() * 1.7
        torch_xla.sync()
        assert y.cpu() > 0
        counters = {name: met.counter_value(name) for name in met.counter_names()}
        found.append((counters, {name: met.metric_data(name) for name in met.metric_names()}))
    return found


@pytest.mark.parametrize(
    ("name", "first", "again"),
    [
        ("MarkStep", 1, 1),
        ("UncachedCompile", 1, None),
        ("CachedCompile", None, 1),
        ("CreateCompileHandles", 1, None),
        ("CreateDataHandles", 2, 2),  # the upload, the result
        ("DeviceDataCacheMiss", 1, 1),  # the number
        ("ExecuteComputation", 1, 1),
        ("xla::_to_copy", 1, 1),
        ("xla::_to_cpu", 1, 1),
        ("xla::t_copy", 1, 1),
        ("xla::mm", 1, 1),
        ("xla::sum", 1, 1),
        ("xla::mul", 1, 1),
    ],
)
def test_a_step_counts(step, name, first, again):
    assert [counters.get(name) for counters, _ in step] == [first, again]


@pytest.mark.parametrize(
    ("name", "first", "again"),
    [
        ("CompileTime", 1, None),
        ("InputOutputAliasCount", 1, None),
        ("ExecuteTime", 1, 1),
        ("TransferToDeviceTime", 1, 1),
        ("TransferFromDeviceTime", 1, 1),
        ("TensorToData", 1, 1),
        ("TensorsGraphSize", 1, 1),
        ("UnwrapXlaData", 1, 1),
        ("WrapXlaData", 1, 1),
        ("LazyTracing", 5, 5),  # the upload and four rows
    ],
)
def test_a_step_has_samples_of(step, name, first, again):
    assert [metrics.get(name, (None,))[0] for _, metrics in step] == [first, again]


def test_a_step_moves_bytes(step):
    for _, metrics in step:
        assert metrics["OutboundData"][:2] == (1, 17 * 3 * 4)
        assert metrics["InboundData"][:2] == (1, 4)


def test_a_graph_has_the_size_of_its_rows_and_leaves(step):
    for _, metrics in step:
        assert metrics["TensorsGraphSize"][1] == 5


def test_a_cut_waits_for_its_trace():
    torch.ones(2, device="xla")
    met.clear_all()
    torch_xla.sync()
    _, waited_ns, _ = met.metric_data("DeviceLockWait")
    assert total("DeviceLockWait") == 1 and 0 < waited_ns < 1e9


@pytest.mark.on_cpu
def test_a_program_takes_until_the_host_sees_it_done():
    x = torch.ones(1500, 1500, device="xla")
    torch_xla.sync(wait=True)
    met.clear_all()
    for _ in range(3):
        x = x @ x
    torch_xla.sync(wait=True)
    count, nanoseconds, _ = met.metric_data("ExecuteTime")
    # 20 GFLOP, which no CPU does in the time of a call.
    assert count == 1 and nanoseconds > 5e6


def test_numbers_that_are_read_count_as_fallbacks():
    x = torch.ones(2, device="xla").sum()
    met.clear_all()
    assert x.item() == 2 and bool(x)
    assert met.counter_value("aten::_local_scalar_dense") == 2
    assert met.executed_fallback_ops() == ["aten::_local_scalar_dense"]
    assert "aten::_local_scalar_dense" in met.short_metrics_report()


def test_the_functions_of_the_device_are_registered_once():
    met.clear_all()
    _XLAC._init_xla_lazy_backend()
    _XLAC._init_xla_lazy_backend()
    assert met.counter_value("RegisterXLAFunctions") == 1


def test_importing_counts_nothing_and_the_first_tensor_does():
    import subprocess
    import sys

    code = (
        "import torch, torch_xla, torch_xla.debug.metrics as met\n"
        "assert met.metrics_report() == ''\n"
        "torch.rand(3, 3, device='xla').cpu()\n"
        "names = {*met.metric_names(), *met.counter_names()}\n"
        "wanted = {'CompileTime', 'CreateCompileHandles', 'CreateDataHandles', 'ExecuteTime',"
        " 'InboundData', 'TransferFromDeviceTime'}\n"
        "assert wanted <= names, names\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=200)


def test_eager_mode_counts_each_operator_and_its_program():
    with torch_xla.experimental.eager_mode_context(True):
        met.clear_all()
        x = torch.tensor(156, device="xla")
        y = x + 100
        xm.wait_device_ops()
        assert total("EagerOpCompileTime") <= 2 == total("EagerOpExecuteTime")
        assert met.counter_value("xla::add") == 1
        torch_xla.sync()
        assert total("CompileTime") == total("ExecuteTime") == 0
    assert y.item() == 256


def test_eager_mode_runs_rows_without_an_operator_at_once():
    with torch_xla.experimental.eager_mode_context(True):
        x = torch.ones(2, device="xla")
        met.clear_all()
        xm.optimization_barrier_([x])
        assert x.value.buffer is not None and total("EagerOpExecuteTime") == 1
        empty = torch.empty(3, device="xla")
        assert empty.value.buffer is not None and total("EagerOpExecuteTime") == 2
