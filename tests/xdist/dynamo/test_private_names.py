"""Graphs by hash and the other private calls behind torch_xla's bridge."""

import pytest
import torch
from torch import nn

import torch_xla
import torch_xla.debug.metrics as met
from torch_xdist.dynamo import cached_graphs
from torch_xdist.errors import ValueLostError
from torch_xla import _XLAC
from torch_xla._dynamo.dynamo_bridge import (
    Deduper,
    GraphInputMatcher,
    NoneRemover,
    SpecialReturnHandler,
    XLAConstructorMoverPass,
    extract_graph_helper,
    extract_internal,
)


@pytest.fixture(autouse=True)
def nothing_pending():
    torch_xla.sync()


def test_a_graph_is_compiled_and_run_by_its_hash():
    x, y = torch.ones(3).to("xla"), torch.full((3,), 2.0).to("xla")
    result = (x + y) * y
    key = _XLAC._get_graph_hash([result])
    ids, held = _XLAC._get_tensors_xla_device_data_node([result])
    assert ids == [_XLAC._xla_get_tensor_id(t) for t in (y, x)]
    assert [t.tolist() for t in held] == [y.tolist(), x.tolist()]
    _XLAC._xla_warm_up_cache([result], [])
    matcher = GraphInputMatcher({ids[1]: 0}, ids, held, {ids[1]})
    (found,) = _XLAC._run_cached_graph(key, matcher([torch.full((3,), 5.0)]))
    assert found.tolist() == [14] * 3
    with pytest.raises(RuntimeError, match=r"_run_cached_graph: the graph .* takes 2 inputs, not"):
        _XLAC._run_cached_graph(key, [x])


def test_an_unknown_hash_is_told():
    with pytest.raises(RuntimeError, match="_run_cached_graph: no graph of hash 12 was compiled"):
        _XLAC._run_cached_graph("12", [])


def test_a_hash_tells_graphs_apart():
    x, y = torch.ones(2, 2).to("xla"), torch.ones(2, 2).to("xla")
    assert _XLAC._get_graph_hash([x.mm(y)]) == _XLAC._get_graph_hash([x.mm(y)])
    assert _XLAC._get_graph_hash([x.mm(y)]) != _XLAC._get_graph_hash([x.mm(x)])
    assert _XLAC._get_graph_hash([x * 5]) != _XLAC._get_graph_hash([x * 7])
    with pytest.raises(RuntimeError, match="Input tensor is not an XLA tensor: 0 of 1 are on an"):
        _XLAC._get_graph_hash([torch.ones(1)])


def test_the_least_recently_used_graph_is_forgotten(monkeypatch):
    x = torch.ones(4).to("xla")
    keys = []
    monkeypatch.setattr(cached_graphs, "_graphs", type(cached_graphs._graphs)())
    monkeypatch.setattr(cached_graphs.settings, "current", lambda: type("S", (), {"cache_size": 1}))
    for number in (5, 7):
        graph, *_ = cached_graphs.capture(x.value.trace, [(x * number).value])
        keys.append(cached_graphs.remember(graph))
    assert [*cached_graphs._graphs] == keys[1:]


def test_inputs_that_are_returned_are_no_results():
    x, y = torch.ones(2).to("xla"), torch.ones(2).to("xla")
    outputs = [x + y, x, y.zero_(), y]
    key = _XLAC._get_graph_hash(outputs)
    _XLAC._xla_warm_up_cache(outputs, [])
    _, inputs = _XLAC._get_tensors_xla_device_data_node(outputs)
    assert len(_XLAC._run_cached_graph(key, inputs)) == 2


def test_pending_rows_are_forgotten():
    x = torch.ones(3).to("xla")
    kept = x + 1
    computed = kept * 2
    _XLAC._xla_sync_multi([computed], devices=[], wait=True)
    assert "aten::add" in _XLAC._get_xla_tensors_text([kept])
    assert _XLAC._check_device_tensor_need_materialization("xla:0") == [True]
    _XLAC._clear_pending_irs("xla:0")
    assert "aten::add" not in _XLAC._get_xla_tensors_text([kept])
    assert computed.tolist() == [4] * 3
    assert _XLAC._is_placecholder(kept)
    later, other = kept + 1, x + 5
    # What does not read it runs.
    torch_xla.sync()
    assert other.tolist() == [6] * 3
    for lost in (kept, later):
        with pytest.raises(ValueLostError, match="but it was forgotten before it was comp"):
            lost.tolist()


def test_only_tensors_of_the_device_are_synced():
    _XLAC._xla_sync_multi([], devices=[])
    with pytest.raises(
        RuntimeError, match="_xla_sync_multi: Input tensor is not an XLA tensor: 1 of"
    ):
        _XLAC._xla_sync_multi([torch.ones(1, device="xla"), torch.ones(1)], devices=[])


def test_tensors_that_hold_the_same_value_have_one_id():
    x = torch.ones(2).to("xla")
    unique = _XLAC._unique_id_for_ir_and_data
    assert unique(x) == unique(x.detach()) != unique(x + 1)
    pending = x + 2
    assert unique(pending) == unique(pending.detach())
    assert _XLAC._xla_get_tensor_id(x) == _XLAC._xla_get_tensor_id(x.view(2, 1))


def test_a_tensor_becomes_another_one():
    x, y = torch.ones(2).to("xla"), torch.zeros(2).to("xla")
    assert _XLAC._replace_xla_tensor(x, y) is x and x.tolist() == [0] * 2


def test_the_state_of_random_numbers_is_a_tensor():
    _XLAC._xla_set_rng_seed(23)
    assert _XLAC._get_base_seed_as_tensor("xla:0").item() == 23
    assert _XLAC._get_seed_info_id() == -127389


def test_buffers_are_marked_and_given_away():
    x = torch.ones(5).to("xla")
    result = x + 1
    key = _XLAC._get_graph_hash([result])
    met.clear_all()
    assert not _XLAC._set_buffer_donation(result, True) and not _XLAC._get_buffer_donation(result)
    assert met.counter_value("XlaSetBufferDonation") is None
    assert _XLAC._set_buffer_donation(x, True) and _XLAC._get_buffer_donation(x)
    assert met.counter_value("XlaSetBufferDonation") == 1
    assert _XLAC._get_graph_hash([result]) == key
    _XLAC._xla_set_enable_alias_with_buffer_donor_config(True)
    assert _XLAC._xla_get_enable_alias_with_buffer_donor_config()
    assert _XLAC._get_graph_hash([result]) != key
    _XLAC._xla_set_enable_alias_with_buffer_donor_config(False)
    assert _XLAC._set_buffer_donation(x, False) and not _XLAC._get_buffer_donation(x)


def test_a_compiled_function_takes_over_a_marked_input():
    x = torch.ones(7).to("xla")
    assert _XLAC._set_buffer_donation(x, True)
    torch._dynamo.reset()
    result = torch.compile(lambda x: x + 1, backend="openxla")(x)
    assert result.tolist() == [2] * 7
    assert "Data Handle: Deleted" in _XLAC._get_xla_tensor_debug_info(x)


def test_an_operator_marks_it_inside_the_function():
    def add(x):
        torch.ops.xla.dynamo_set_buffer_donor_(x, True)
        x += 1

    torch._dynamo.reset()
    x = torch.ones(6).to("xla")
    compiled = torch.compile(add, backend="openxla")
    for _ in range(3):
        compiled(x)
    assert x.tolist() == [4] * 6 and not _XLAC._get_buffer_donation(x)
    on_cpu = torch.ones(2)
    assert torch.ops.xla.dynamo_set_buffer_donor_(on_cpu, True) is not None
    assert torch.ops.xla.dynamo_mark_sharding(on_cpu, [0], [1], "('x',)", "('x',)").shape == (2,)


class Twice(nn.Module):
    def forward(self, x, number):
        return x * number, None


def test_a_module_is_extracted_by_itself():
    x = torch.ones(3).to("xla")
    graph = torch.fx.symbolic_trace(Twice(), concrete_args=None)
    graph.xla_args = (x, 3)
    tripled, nothing = extract_internal(graph)(x, 3)
    assert tripled.tolist() == [3] * 3 and nothing is None
    table = {}
    capture = extract_graph_helper(graph, table)
    assert table == {(3,): capture} and len(capture.graph.outs) == 1


def test_constructors_move_to_where_their_result_goes():
    graph = torch.fx.Graph()
    made = graph.call_function(torch.ops.aten.arange.default, (3,), {"device": torch.device("cpu")})
    copy = torch.ops.aten._to_copy.default
    graph.output(graph.call_function(copy, (made,), {"device": torch.device("xla", 0)}))
    XLAConstructorMoverPass()(graph)
    assert made.kwargs["device"] == torch.device("xla", 0)


def test_lists_are_deduplicated_and_completed():
    x, y = torch.ones(2).to("xla"), torch.ones(2).to("xla")
    deduper = Deduper()
    with pytest.raises(ValueError, match=r"Deduper\.recover: no list was deduplicated"):
        deduper.recover([])
    assert len(deduper.dedup([x, y, x])) == 2 and deduper.recover(["a", "b"]) == ["a", "b", "a"]
    result = x + y
    handler = SpecialReturnHandler([x, y], [result, y], [False, False], [(1, 7)])
    assert handler.addDumbReturn(["X", "Y"], ["R"]) == ["R", 7, "Y"]


@pytest.mark.parametrize("kind", [list, tuple])
def test_nones_are_taken_out_and_put_back(kind):
    remover = NoneRemover()
    assert remover.remove_nones(kind([None, 1, None, 2])) == kind([1, 2])
    assert remover.add_nones(kind([1, 2])) == kind([None, 1, None, 2])
    with pytest.raises(TypeError, match="NoneRemover: value_list must be a list or a tuple; it is"):
        remover.remove_nones({})
