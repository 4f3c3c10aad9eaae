"""The parts of torch_xla's bridge: who is noted, moved and parted, and the marks inside graphs."""

import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import torch_xla
import torch_xla.debug.metrics as met
from torch_xdist.dynamo import bridge
from torch_xdist.dynamo.captured import CapturedModule
from torch_xla import _XLAC
from torch_xla._dynamo import dynamo_bridge
from torch_xla._dynamo.dynamo_bridge import (
    InputCollector,
    UnsupportedNodesCollector,
    XLAConstructorMoverPass,
    extract_compiled_graph_helper,
    get_fallback_ops,
    is_xla_tensor,
    partition_fx_graph_for_cpu_fallback,
)
from torch_xla._internal import custom_kernel


class OnBothSides(nn.Module):
    """The product of what was taken from the CPU is on the device; the rest is not."""

    def forward(self, x, y):
        return torch.cos(x) * 2, y + 1


def test_nodes_of_the_cpu_are_noted():
    graph = make_fx(OnBothSides())(torch.ones(2), torch.ones(2))
    collector = UnsupportedNodesCollector(graph)
    assert collector.get_unsupported_nodes() == []
    x = torch.ones(2).to("xla")
    double, more = collector.run(x, torch.zeros(2))
    assert is_xla_tensor(double) and not is_xla_tensor(more) and more.tolist() == [1, 1]
    noted = {node.target for node in collector.get_unsupported_nodes()}
    assert torch.ops.aten.add.Tensor in noted
    assert not {torch.ops.aten.cos.default, torch.ops.aten.mul.Tensor} & noted


def test_a_node_without_a_lowering_is_noted():
    met.clear_all()
    assert get_fallback_ops() == []
    # torch has it for tests of what a device lacks.
    graph = make_fx(lambda x: torch._foobar(torch.cos(x)))(torch.ones(2))
    collector = UnsupportedNodesCollector(graph)
    collector.run(torch.ones(2).to("xla"))
    assert get_fallback_ops() == ["aten::_foobar"]
    (noted,) = collector.get_unsupported_nodes()
    assert noted.target is torch.ops.aten._foobar.default


def test_parts_of_a_graph_keep_the_arguments_they_were_called_with():
    class Part(nn.Module):
        def forward(self, x, number):
            return x * number

    whole = nn.Module()
    whole.fused_0, whole.other = Part(), Part()
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    first = graph.call_module("fused_0", (x, 3))
    graph.output(graph.call_module("other", (first, 2)))
    module = torch.fx.GraphModule(whole, graph)
    given = torch.ones(2)
    assert InputCollector(module).run(given).tolist() == [6, 6]
    assert module.fused_0.xla_args == (given, 3) and not hasattr(module.other, "xla_args")


def test_a_graph_is_parted_around_what_only_the_cpu_can_run():
    x = torch.tensor([1.0, -2.0, 3.0]).to("xla")
    graph = make_fx(lambda x: torch.cos(torch._foobar(x * 2)))(torch.ones(3))
    run = partition_fx_graph_for_cpu_fallback(graph, (x,), (x,), [x])
    assert [n for n, _ in run.named_children() if n.startswith("fused_")]
    torch.testing.assert_close(run(x).cpu(), (x.cpu() * 2).cos())
    whole = make_fx(lambda x: torch.cos(x * 2))(torch.ones(3))
    run = partition_fx_graph_for_cpu_fallback(whole, (x,), (x,), [x])
    assert isinstance(run, CapturedModule)
    torch.testing.assert_close(run(x).cpu(), (x.cpu() * 2).cos())


def test_a_graph_is_compiled_by_the_helper_without_a_count():
    met.clear_counters()
    x = torch.arange(3.0).to("xla")
    run = extract_compiled_graph_helper(make_fx(lambda x: (x + 1,))(torch.ones(3)), (x,))
    assert met.counter_value("DynamoExtractCompiledGraph") is None
    assert run(x)[0].tolist() == [1, 2, 3] and run(x * 2)[0].tolist() == [1, 3, 5]


def test_the_debug_switches_are_off_where_no_variable_is_set():
    assert not dynamo_bridge.dynamo_debug and not dynamo_bridge.ptxla_debug


def test_the_debug_switch_tells_what_was_compiled(monkeypatch, capsys):
    monkeypatch.setattr(bridge, "dynamo_debug", True)
    x = torch.ones(5).to("xla")
    extract_compiled_graph_helper(make_fx(lambda x: (x + 1, x * 2))(torch.ones(5)), (x,))
    told = capsys.readouterr().out
    assert "Number of HLO Input: 1\n" in told and "Number of HLO Output: 2\n" in told


def test_only_what_is_used_on_the_device_moves_there():
    mover = XLAConstructorMoverPass()
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    on_cpu = {"device": torch.device("cpu")}
    copy = torch.ops.aten._to_copy.default
    index = graph.call_function(torch.ops.aten.arange.default, (2,), on_cpu)
    taken = graph.call_function(torch.ops.aten.index.Tensor, (x, [index]))
    taken.meta["val"] = torch.empty(2).to("xla")
    kept = graph.call_function(torch.ops.aten.arange.default, (3,), on_cpu)
    there = graph.call_function(copy, (kept,), {"device": torch.device("xla")})
    stays = graph.call_function(copy, (kept,), on_cpu)
    graph.output((taken, there, stays))
    allowed = [mover.allow_cpu_device(node) for node in (taken, there, stays, x)]
    assert allowed == [True, True, False, False]
    mover(graph)
    assert index.kwargs["device"] == torch.device("xla", 0)
    assert kept.kwargs["device"] == torch.device("cpu")


def test_of_other_devices_the_marks_of_captured_graphs_do_nothing():
    x = torch.ones(4)
    where = [0, 1], [2], "('x',)", "('x',)"
    assert custom_kernel.dynamo_mark_sharding(x, *where) is x
    assert custom_kernel.dynamo_set_buffer_donor_(x, True) is x
    there = x.to("xla") + 1
    torch_xla.sync()
    assert custom_kernel.dynamo_set_buffer_donor_xla_(there, True) is there
    assert _XLAC._get_buffer_donation(there)
    assert custom_kernel.dynamo_set_buffer_donor_xla_(there, False) is there
    assert not _XLAC._get_buffer_donation(there)
