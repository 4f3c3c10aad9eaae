"""Graphs with open sizes, rewritten: they say the same, without the operators in question."""

import operator

import pytest
import torch
from torch.export import Dim, export

import torch_xla.experimental.xla_dynamic_reshape_ops as reshape_ops
import torch_xla.stablehlo as stablehlo
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
    # In double precision: of three numbers near each other torch's operator, which computes
    # x * scale - mean * scale, is off by up to 1.6e-5 in float32.
    x, weight, bias = (torch.rand(*s, dtype=torch.float64) for s in ((2, 4, 3), (4,), (4,)))
    args = (x, weight, bias, 2, 4, 3, 4, 1e-5)
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


@pytest.mark.parametrize(
    ("function", "shape", "is_simple"),
    [
        (lambda x: layer_norm(x, [4], torch.full((4,), 2.0), torch.ones(4)), (2, 3, 4), True),
        (lambda x: layer_norm(x, [3, 4], torch.ones(3, 4), torch.zeros(3, 4)), (2, 3, 4), False),
        (lambda x: layer_norm(x, [4], None, None), (2, 3, 4), False),
        (lambda x: layer_norm(x, [4], torch.ones(4), None), (2, 3, 4), False),
        (lambda x: group_norm(x, 4, 6), (2, 4, 6), True),
        (lambda x: group_norm(x, 2, 6), (2, 4, 6), False),
        (lambda x: group_norm(x, 4, 12), (2, 4, 6, 2), False),
    ],
    ids=["last dim", "two dims", "no weight", "no bias", "a channel each", "two each", "images"],
)
def test_a_norm_becomes_simple_operators_only_where_they_say_the_same(function, shape, is_simple):
    rewrites = [
        fx_passes.decompose_dynamic_native_layer_norm,
        fx_passes.decompose_dynamic_native_group_norm,
    ]
    # Rows and channels that differ, so that a mean over the wrong ones is seen.
    steps = torch.arange(1.0, 1 + shape[1]).reshape(-1, *[1] * (len(shape) - 2))
    code = rewritten(function, (torch.rand(*shape) * steps,), ({0: Dim("rows")},), *rewrites)
    assert ("native" not in code) == is_simple


def layer_norm(x, sizes, weight, bias):
    return torch.ops.aten.native_layer_norm.default(x, sizes, weight, bias, 1e-5)[0]


def group_norm(x, groups, length):
    affine = torch.full((4,), 2.0), torch.ones(4)
    sizes = x.shape[0], 4, length
    return torch.ops.aten.native_group_norm.default(x, *affine, *sizes, groups, 1e-5)[0]


def test_the_simple_form_of_a_layer_norm_is_torchs():
    x, weight, bias = torch.rand(2, 3, 4), torch.rand(4), torch.rand(4)
    found = fx_passes.native_layer_norm_impl(x, [4], weight, bias, 1e-3)
    torch.testing.assert_close(found, torch.layer_norm(x, [4], weight, bias, 1e-3))
    torch.testing.assert_close(
        fx_passes.native_layer_norm_pattern(x, [4], weight, bias, 1e-3), found
    )


def test_a_program_with_an_open_size_is_told_from_one_without():
    module = fx_passes.wrap_func_as_nn_module(lambda x: x.unsqueeze(-1).expand(-1, -1, 2) * 2)
    fixed = export(module, (torch.rand(3, 4),))
    opened = export(module, (torch.rand(3, 4),), dynamic_shapes=((OPEN,),))
    assert not stablehlo.exported_program_has_symbolic_input_shape(fixed)
    assert stablehlo.exported_program_has_symbolic_input_shape(opened)
    opened = opened.run_decompositions({})
    before = opened.module()(torch.ones(5, 4))
    stablehlo.process_exported_program_with_symbolic_input(opened)
    opened.graph_module.recompile()
    assert "xla.dynamic_view" in opened.graph_module.code
    assert "aten.unsqueeze" not in opened.graph_module.code
    torch.testing.assert_close(opened.module()(torch.ones(5, 4)), before)


def test_a_call_is_entered_with_what_it_is_called_with():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.empty(3, device="meta")
    plain = fx_passes.call_function(graph, torch.ops.aten.neg.default, (x,))
    named = fx_passes.call_function(
        graph, torch.ops.aten.sum.dim_IntList, (plain, [0]), {"keepdim": True}
    )
    graph.output(named)
    found = torch.fx.GraphModule({}, graph)(torch.ones(3))
    assert found.tolist() == [-3] and plain.kwargs == {} and named.kwargs == {"keepdim": True}
    assert (plain.meta["val"].shape, named.meta["val"].shape) == ((3,), (1,))


def test_dynamic_reshapes_say_their_shape_without_values():
    x, source = torch.empty(6, 1, device="meta"), torch.empty(4, 2, device="meta")
    found = reshape_ops.dynamic_expand_meta(x, [-1, 7], source, 0, 1)
    assert (found.shape, found.device.type) == ((6, 4), "meta")
    found = reshape_ops.dynamic_view_meta(x, [-1, 3], source, 1, 0, 1.0)
    assert (found.shape, found.device.type) == ((2, 3), "meta")
    here, other = torch.arange(6.0).reshape(6, 1), torch.ones(4, 2)
    assert torch.equal(reshape_ops.dynamic_expand(here, [-1, 7], other, 0, 1), here.expand(6, 4))
    assert torch.equal(reshape_ops.dynamic_view(here, [-1, 3], other, 1, 0, 1.0), here.view(2, 3))
