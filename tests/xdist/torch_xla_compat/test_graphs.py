"""Pending graphs in torch_xla's text forms."""

import pytest
import torch

import torch_xla
from torch_xdist.core.run import cuts
from torch_xdist.torch_xla_compat import graphs


@pytest.fixture
def pair():
    torch_xla.sync()
    x, y = torch.ones(2, 3).to("xla"), torch.ones(3, 2).to("xla")
    torch_xla.sync()
    return x, y


def test_the_text_lists_operands_before_users(pair):
    x, y = pair
    assert graphs.text_of([x.mm(y).mean()]) == (
        "IR {\n"
        "  %0 = f32[3,2]{1,0} xla::device_data(), device=CPU:0\n"
        "  %1 = f32[2,3]{1,0} xla::device_data(), device=CPU:0\n"
        "  %2 = f32[2,2]{1,0} aten::mm(%1, %0)\n"
        "  %3 = f32[] aten::mean(%2), ROOT=0\n"
        "}\n"
    )


def test_static_arguments_stand_by_their_names(pair):
    x, _ = pair
    text = graphs.text_of([x.sum(dim=[0], keepdim=True)])
    assert "aten::sum(%0), dim=(0), keepdim=1, ROOT=0" in text


def test_results_of_one_row_are_told_apart(pair):
    x, _ = pair
    values, places = x.topk(2)
    text = graphs.text_of([values, places])
    assert "(f32[2,2]{1,0}, s64[2,2]{1,0}) aten::topk" in text and "num_outputs=2" in text


def test_dot_draws_nodes_and_edges(pair):
    x, y = pair
    assert graphs.dot_of([x.mm(y)]) == (
        "digraph G {\n"
        '  node0 [label="xla::device_data\\nf32[3,2]{1,0}\\ndevice=CPU:0"]\n'
        '  node1 [label="xla::device_data\\nf32[2,3]{1,0}\\ndevice=CPU:0"]\n'
        '  node2 [label="aten::mm\\nf32[2,2]{1,0}\\nROOT=0"]\n'
        '  node1 -> node2 [label="i=0"]\n'
        '  node0 -> node2 [label="i=1"]\n'
        "}\n"
    )


def test_hlo_and_stablehlo_come_from_the_compiler(pair):
    x, y = pair
    product = x.mm(y)
    assert "HloModule" in graphs.hlo_of([product]) and "dot(" in graphs.hlo_of([product])
    assert "stablehlo.dot_general" in graphs.stablehlo_of([product])


def test_asking_for_the_graph_does_not_run_it(pair):
    x, y = pair
    before = cuts.REASONS.total()
    graphs.text_of([x.mm(y)])
    assert cuts.REASONS.total() == before


@pytest.mark.parametrize("format", ["text", "dot", "hlo"])
def test_a_graph_is_saved_into_a_file(pair, tmp_path, monkeypatch, format):
    monkeypatch.setenv("SAVE_GRAPH_FMT", format)
    graphs.save_tensors_graph(tmp_path, "name", [pair[0] + 1])
    (file,) = tmp_path.iterdir()
    assert file.name.startswith("name-") and file.suffix == f".{format}" and file.read_text()


def test_an_unknown_format_is_named(pair, tmp_path, monkeypatch):
    monkeypatch.setenv("SAVE_GRAPH_FMT", "png")
    with pytest.raises(RuntimeError, match="Invalid save graph format: png; use one of text, dot"):
        graphs.save_tensors_graph(tmp_path, "name", [pair[0]])


def test_tensors_without_a_graph_are_refused(pair):
    with pytest.raises(RuntimeError, match=r"Input tensor is not an XLA tensor: torch\.Float"):
        graphs.text_of([torch.ones(1)])
    with pytest.raises(RuntimeError, match="0 tensors of 0 devices; give one or more tensors"):
        graphs.text_of([])


def text_of(tensor):
    return torch_xla._XLAC._get_xla_tensors_text([tensor]).splitlines()[1:-1]


def test_numbers_are_operands_in_their_places():
    x = torch.ones(3, device="xla") * 1
    torch_xla.sync()
    assert text_of(torch.pow(x, 5)) == [
        "  %0 = f32[] prim::Constant(), value=5",
        "  %1 = f32[3]{0} xla::device_data(), device=CPU:0",
        "  %2 = f32[3]{0} aten::pow(%1, %0), ROOT=0",
    ]
    assert text_of(torch.pow(2.5, x)) == [
        "  %0 = f32[3]{0} xla::device_data(), device=CPU:0",
        "  %1 = f32[] xla::device_data(), device=CPU:0",
        "  %2 = f32[3]{0} aten::pow(%1, %0), ROOT=0",
    ]
    constant, *_ = text_of(torch.addcmul(x, x, x, value=1.0))
    assert constant == "  %0 = f32[] prim::Constant(), value=1.0"
