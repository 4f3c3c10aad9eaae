"""Graphs with open sizes, rewritten: they say the same, without the operators in question."""

import operator

import pytest
import torch
from torch.export import Dim, export

from torch_xdist.errors import ArgumentError
from torch_xdist.export import dynamic_reshapes, fx_passes

OPEN = {0: Dim("size")}


def rewritten(function, args, dynamic_shapes, *rewrites):
    """The code of a graph after the rewrites, which left what it computes as it was."""
    module = fx_passes.wrap_func_as_nn_module(function)
    program = export(module, args, dynamic_shapes=(dynamic_shapes,)).run_decompositions({})
    before = program.module()(*args)
    for rewrite in rewrites:
        rewrite(program.graph_module)
        program.graph_module.graph.eliminate_dead_code()
        program.graph_module.recompile()
    torch.testing.assert_close(program.module()(*args), before)
    return program.graph_module.code


def x(*shape):
    return (torch.rand(*shape),)


@pytest.mark.parametrize(
    ("function", "args", "rewrites", "gone", "there"),
    [
        (
            lambda x: x.select(1, 0),
            x(3, 4, 5),
            [fx_passes.decompose_dynamic_shape_select, fx_passes.replace_dynamic_view_with_xla_op],
            "aten.select",
            "xla.dynamic_view",
        ),
        (
            lambda x: torch.ops.aten.split_with_sizes.default(x, [1, 2], -1)[1],
            x(4, 3),
            [fx_passes.decompose_split_with_sizes],
            "split_with_sizes",
            "aten.slice",
        ),
        (
            lambda x: torch.ops.aten.slice(x * 2, 1, 0, 2**63 - 1),
            x(4, 3),
            [fx_passes.remove_no_op_slice],
            "aten.slice",
            "aten.mul",
        ),
        (
            lambda x: x.unsqueeze(-1),
            x(4, 3),
            [fx_passes.dynamic_unsqueeze_to_view],
            "aten.unsqueeze",
            "aten.view",
        ),
        (
            lambda x: x.view(2 * x.shape[0], -1),
            x(4, 6),
            [fx_passes.replace_dynamic_view_with_xla_op],
            "aten.view",
            "xla.dynamic_view",
        ),
    ],
)
def test_an_operator_is_rewritten(function, args, rewrites, gone, there):
    code = rewritten(function, args, (OPEN,), *rewrites)
    assert gone not in code and there in code


def test_an_embedding_reads_a_row_of_indices():
    args = (torch.rand(20, 4), torch.randint(0, 15, (3, 5)))
    function = torch.ops.aten.embedding.default
    passes = (
        fx_passes.flatten_embedding_indices_tensor,
        fx_passes.replace_dynamic_view_with_xla_op,
    )
    code = rewritten(function, args, (None, OPEN), *passes)
    assert code.count("xla.dynamic_view") == 2 and "aten.reshape" not in code


def test_an_expansion_takes_its_size_from_another_tensor():
    args = (torch.rand(1, 5), torch.rand(3, 4))
    code = rewritten(
        lambda x, y: x.expand(y.shape[0], -1),
        args,
        (None, OPEN),
        fx_passes.replace_dynamic_expand_with_xla_op,
    )
    assert "xla.dynamic_expand" in code


def test_group_norm_with_one_channel_in_a_group_is_its_simple_form():
    args = (torch.rand(2, 4, 3), torch.rand(4), torch.rand(4), 2, 4, 3, 4, 1e-5)
    expected = fx_passes.native_group_norm_pattern(*args)
    torch.testing.assert_close(fx_passes.native_group_norm_impl(*args), expected)


def test_selecting_along_an_open_size_is_refused():
    module = fx_passes.wrap_func_as_nn_module(lambda x: x.select(0, 1))
    program = export(module, x(4, 3), dynamic_shapes=((OPEN,),)).run_decompositions({})
    with pytest.raises(ArgumentError, match="selects along dim 0, whose size is open"):
        fx_passes.decompose_dynamic_shape_select(program.graph_module)


def graph_with_size(target, *rest):
    """x.view([a term of x's size]), as torch.export may write it."""
    graph = torch.fx.Graph()
    source = graph.placeholder("x")
    size = graph.call_function(torch.ops.aten.sym_size.int, (source, 0))
    term = graph.call_function(target, (size, *rest))
    graph.output(graph.call_function(torch.ops.aten.view.default, (source, [term])))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def test_a_size_may_be_a_multiple_of_another_and_nothing_else():
    twice = graph_with_size(operator.mul, 2)
    fx_passes.replace_dynamic_view_with_xla_op(twice)
    assert "xla.dynamic_view](args = (%x, [%mul], %x, 0, 0, 2)" in str(twice.graph)
    more = graph_with_size(operator.add, 2)
    with pytest.raises(ArgumentError, match="it may be the size of a tensor, times a number"):
        fx_passes.replace_dynamic_view_with_xla_op(more)


def test_two_open_sizes_are_one_too_many():
    module = fx_passes.wrap_func_as_nn_module(lambda x: x.unsqueeze(0))
    shapes = (({0: Dim("a"), 1: Dim("b")},),)
    program = export(module, x(4, 3), dynamic_shapes=shapes).run_decompositions({})
    with pytest.raises(ArgumentError, match="where 2 are open; at most one dim of a tensor may be"):
        fx_passes.dynamic_unsqueeze_to_view(program.graph_module)


@pytest.mark.parametrize("device", ["cpu", "xla"])
def test_dynamic_reshapes_take_their_size_from_the_other_tensor(device):
    numbers, like = torch.arange(6.0).to(device), torch.zeros(3, 2).to(device)
    view = dynamic_reshapes.dynamic_view_xla(numbers, [6, 1], like, 1, 0, 3)
    assert view.tolist() == [[float(i)] for i in range(6)]
    wide = dynamic_reshapes.dynamic_expand_xla(numbers[:1], [3, -1], like, 0, 0)
    assert wide.tolist() == [[0.0]] * 3
