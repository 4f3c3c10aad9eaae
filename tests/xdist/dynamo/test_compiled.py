"""`torch.compile(backend="openxla")`: what it computes, and how many programs that takes."""

import gc
from dataclasses import replace

import pytest
import torch
from torch import nn

import torch_xla
import torch_xla.core.dynamo_bridge as bridge
import torch_xla.debug.metrics as met
from torch_xdist import platforms, settings
from torch_xdist.core.devices import device
from torch_xla._dynamo import config, dynamo_backend2


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch_xla.sync()
    met.clear_all()


def counts():
    """How often XLA compiled, and how often a program ran."""
    return [(met.metric_data(name) or [0])[0] for name in ("CompileTime", "ExecuteTime")]


def small_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


def test_a_call_is_one_program_and_the_next_one_compiles_nothing():
    x, y = torch.rand(3), torch.rand(3)
    function = torch.compile(lambda x, y: torch.cos(x) + torch.sin(y), backend="openxla")
    on_device = x.to("xla"), y.to("xla")
    torch.testing.assert_close(function(*on_device).cpu(), x.cos() + y.sin())
    assert counts() == [1, 1] and met.counter_value("DynamoExtractCompiledGraph") == 1
    function(*on_device)
    assert counts() == [1, 2] and met.metric_data("RunCachedGraphInputData")[0] == 2
    assert met.counter_value("CachedCompile") is None


def test_all_programs_of_a_training_are_those_of_its_first_step():
    # What is recorded to compile keeps no buffer, also before garbage is collected.
    gc.disable()
    try:
        model, x = small_model().to("xla"), torch.rand(3, 4).to("xla")
        compiled = torch.compile(model, backend="openxla")
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        compilations = []
        for _ in range(3):
            optimizer.zero_grad()
            compiled(x).square().sum().backward()
            optimizer.step()
            torch_xla.sync()
            compilations.append(counts()[0])
        assert compilations[0] == compilations[1] == compilations[2]
    finally:
        gc.enable()


def test_a_training_step_is_the_cpus():
    model, x = small_model(), torch.rand(5, 4)
    ours = small_model().to("xla")
    compiled = torch.compile(ours, backend="openxla")
    for _ in range(2):
        model(x).square().sum().backward()
        compiled(x.to("xla")).square().sum().backward()
    for expected, found in zip(model.parameters(), ours.parameters()):
        torch.testing.assert_close(found.grad.cpu(), expected.grad, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours[1].running_mean.cpu(), model[1].running_mean)


def test_a_convolutional_model_in_inference_is_one_program():
    parts = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)
    model = nn.Sequential(*parts, nn.AdaptiveAvgPool2d((1, 1)), nn.Flatten(), nn.Linear(4, 2))
    x = torch.rand(2, 3, 8, 8)
    with torch.no_grad():
        expected = model.eval()(x)
    x, model = x.to("xla"), model.to("xla")
    torch_xla.sync()
    met.clear_all()
    compiled = torch.compile(model, backend="openxla")
    for turn in range(1, 3):
        torch.testing.assert_close(compiled(x).cpu(), expected, rtol=1e-4, atol=1e-5)
        assert counts() == [1, turn]


def test_what_is_written_in_place_is_written():
    def function(x, y):
        x += 1
        y.copy_(x)
        return x * 2, x, None, 5

    compiled = torch.compile(function, backend="openxla", fullgraph=True)
    x, y = torch.zeros(2, device="xla"), torch.zeros(2, device="xla")
    for turn in range(1, 4):
        double, same, nothing, number = compiled(x, y)
        assert x.tolist() == y.tolist() == same.tolist() == [turn] * 2
        assert double.tolist() == [2 * turn] * 2 and nothing is None and number == 5


def test_inputs_that_shared_a_buffer_once_are_two_inputs():
    x = torch.ones(2, device="xla")
    torch_xla.sync()
    y = torch.empty(2, device="xla").copy_(x)
    torch_xla.sync()
    compiled = torch.compile(lambda x, y: x - y, backend="openxla")
    assert compiled(x, y).tolist() == [0, 0]
    assert compiled(torch.full_like(x, 5), y).tolist() == [4, 4]


def test_a_view_is_an_input_by_its_values():
    whole = torch.arange(6.0, device="xla")

    def function(part):
        part += 10
        return part * 2

    compiled = torch.compile(function, backend="openxla")
    assert compiled(whole[2:4]).tolist() == [24, 26]
    assert whole.tolist() == [0, 1, 12, 13, 4, 5]


def test_random_numbers_differ_from_call_to_call():
    compiled = torch.compile(lambda x: torch.rand(3, device=x.device) + x, backend="openxla")
    x = torch.zeros(3, device="xla")
    torch_xla.manual_seed(1)
    first, second = compiled(x).tolist(), compiled(x).tolist()
    torch_xla.manual_seed(1)
    assert first != second and compiled(x).tolist() == first


def test_pending_inputs_run_first_and_nothing_else_does():
    compiled = torch.compile(lambda x: x * 2, backend="openxla")
    x = torch.ones(2).to("xla")
    compiled(x)
    pending, other = x + 5, x + 6
    assert compiled(pending).tolist() == [12, 12]
    assert met.counter_value("DynamoSyncInputExecuteTime") == 1
    needed = torch_xla._XLAC._check_tensor_need_materialization([pending, other, torch.ones(1)])
    assert needed == [False, True, False] and other.tolist() == [7, 7]


def test_pending_inputs_are_refused_where_the_script_says_there_are_none(monkeypatch):
    compiled = torch.compile(lambda x: x * 2, backend="openxla")
    x = torch.ones(2, device="xla")
    compiled(x)
    monkeypatch.setattr(config, "skip_input_data_check", True)
    with pytest.raises(RuntimeError, match="dynamo: input data to dynamo graph can not be a pend"):
        compiled(x + 1)


def test_a_dynamic_shape_is_compiled_for_each_size_and_traced_once():
    compiled = torch.compile(lambda x: (x * 2).sum(0), backend="openxla", dynamic=True)
    for size in (3, 4, 3):
        x = torch.ones(size, 2).to("xla")
        assert compiled(x).tolist() == [2 * size] * 2
    assert met.counter_value("DynamoExtractCompiledGraph") == 1 and counts() == [2, 3]


def test_recordings_are_as_many_as_programs_may_be(monkeypatch):
    usual = settings.current()
    monkeypatch.setattr(settings, "current", lambda: replace(usual, cache_size=2))
    graph = torch.fx.symbolic_trace(lambda x, number: x * number)
    x = torch.ones(2).to("xla")
    run = bridge.extract_compiled_graph(graph, (x, 3))
    for number in (4, 5, 6, 4):
        assert run(x, number).tolist() == [number] * 2
    assert len(run._captures) == 2


def test_another_shape_is_another_graph_without_dynamic():
    compiled = torch.compile(lambda x: x * 2, backend="openxla")
    for size in (3, 4):
        compiled(torch.ones(size).to("xla"))
    assert met.counter_value("DynamoExtractCompiledGraph") == 2


class FallsBack(nn.Module):
    def forward(self, x, factor=3):
        # torch has it for tests of what a device lacks.
        return torch._foobar(x * factor) + 1


def test_what_only_the_cpu_runs_parts_the_graph():
    compiled = torch.compile(FallsBack(), backend="openxla")
    x = torch.ones(5).to("xla")
    assert compiled(x).tolist() == [4] * 5
    assert met.executed_fallback_ops() == ["aten::_foobar"]
    met.clear_all()
    assert compiled(x).tolist() == [4] * 5
    assert counts() == [0, 2]


def test_a_size_that_is_read_is_no_part_of_a_program(monkeypatch):
    monkeypatch.setattr(device.device_at(0), "choices", platforms.of("tpu"))
    function = torch.compile(lambda x: (x * 2).masked_select(x > 0) + 1, backend="openxla")
    for x in (torch.tensor([1.0, -1.0, 2.0]), torch.tensor([3.0, -1.0, -2.0])):
        with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
            assert torch.equal(function(x.to("xla")).cpu(), x[x > 0] * 2 + 1)
    assert met.executed_fallback_ops() == []


def test_a_graph_of_numbers_with_such_an_operator_is_not_captured():
    x = torch.ones(5).to("xla")
    run = bridge.extract_compiled_graph(torch.fx.symbolic_trace(FallsBack()), (x, 4))
    assert run(x, 4).tolist() == [5] * 5 and run(x, 6).tolist() == [7] * 5
    assert met.metric_data("RunCachedGraphInputData") is None


def test_tensors_of_the_cpu_stay_there():
    compiled = torch.compile(lambda x, i: (x[i], i + 1), backend="openxla")
    with pytest.warns(UserWarning, match=r"Found tensor with shape torch.Size\(\[2\]\) on cpu"):
        found, index = compiled(torch.arange(3.0, device="xla"), torch.tensor([2, 0]))
    assert found.tolist() == [2, 0] and index.tolist() == [3, 1] and index.device.type == "cpu"


def test_a_constant_of_the_cpu_is_made_on_the_device():
    compiled = torch.compile(lambda x: torch.arange(3).to(x.device) + x, backend="openxla")
    assert compiled(torch.ones(3, device="xla")).tolist() == [1, 2, 3]
    assert met.metric_data("RunCachedGraphInputData")[0] == 1


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.arange(4).to("xla") + x,
        lambda x: x.to("xla") + x.to(torch.float16) + x.to(x.device, torch.int32),
        lambda x: torch.ones(4, device="xla") * 3 + x,
        lambda x: x[torch.arange(2)],
        lambda x: x.to("xla").index_put((torch.arange(2),), torch.zeros((), device="xla")),
    ],
    ids=["moved", "input", "made", "index", "written index"],
)
def test_the_device_may_be_named_without_an_index_and_indices_made_anywhere(function):
    x = torch.arange(4.0)
    compiled = torch.compile(function, backend="openxla", fullgraph=True)
    expected = function(x.to("xla")).cpu()
    met.clear_all()
    assert torch.equal(compiled(x.to("xla")).cpu(), expected)
    # One program, and nothing of it on the CPU.
    assert met.counter_value("UncachedCompile") == 1
    assert met.metric_data("RunCachedGraphInputData")[0] == 1


def test_a_graph_without_inputs_runs_on_this_threads_device():
    compiled = torch.compile(lambda: torch.full((2,), 3.0, device="xla:0") + 1, backend="openxla")
    assert compiled().tolist() == [4, 4]


def test_devices_may_not_be_mixed():
    model = torch.compile(nn.Linear(2, 2).to("xla"), backend="openxla")
    with pytest.raises(Exception, match=r"all tensors to be on the same device|different devices"):
        model(torch.ones(1, 2))


def test_the_second_backend_serves_both_passes():
    model, x = small_model(), torch.rand(5, 4)
    ours = small_model().to("xla")
    model(x).sum().backward()
    torch.compile(ours, backend=dynamo_backend2.dynamo_backend)(x.to("xla")).sum().backward()
    grad = ours[0].weight.grad.cpu()
    torch.testing.assert_close(grad, model[0].weight.grad, rtol=1e-4, atol=1e-5)


def test_eager_mode_does_not_reach_into_a_compiled_function():
    compiled = torch.compile(lambda x: torch.cos(torch.sin(x)), backend="openxla")
    with torch_xla.experimental.eager_mode_context(True):
        x = torch.ones(2, device="xla")
        met.clear_all()
        found = compiled(x)
        assert met.metric_data("RunCachedGraphInputData")[0] == 1 and counts() == [1, 1]
        assert met.metric_data("EagerOpExecuteTime") is None
        assert (x + 1).tolist() == [2, 2] and met.metric_data("EagerOpExecuteTime")[0] == 1
    torch.testing.assert_close(found.cpu(), torch.ones(2).sin().cos())


def test_fake_tensors_say_that_they_are_on_the_device():
    seen = []

    def backend(graph, inputs):
        placeholder = next(iter(graph.graph.nodes))
        seen.append(placeholder.meta["example_value"])
        return graph.forward

    torch.compile(lambda x: x * 2, backend=backend)(torch.ones(2, device="xla"))
    assert seen[0].device == torch.device("xla", 0) and type(seen[0]).__name__ == "FakeTensor"
