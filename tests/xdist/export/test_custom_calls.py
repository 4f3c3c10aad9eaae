"""Operations of StableHLO by name, and tensors in the memory of the host."""

import pytest
import torch

import torch_xla.experimental.stablehlo_custom_call as custom_calls
from torch_xdist.errors import ArgumentError
from torch_xdist.export.custom_calls import (
    extract_custom_call_outputs_shape_dtype,
    place_to_device,
    place_to_host,
    stablehlo_custom_call,
)
from torch_xdist.export.graph_module import StableHLOExportOptions
from torch_xdist.export.pending import get_stablehlo
from torch_xdist.export.programs import exported_program_to_stablehlo
from torch_xla import _XLAC

LIBRARY = torch.library.Library("export_custom_calls", "DEF")


def ones(*shape):
    return torch.ones(*shape).to("xla")


def test_a_call_is_there_with_all_that_was_said():
    y = stablehlo_custom_call(
        [ones(3, 3)], "somebodys", [(3,)], [torch.int8], True, "config", 2, {"_key": "value"}
    )
    text = get_stablehlo([y])
    assert "stablehlo.custom_call @somebodys(%arg0)" in text
    assert "(tensor<3x3xf32>) -> tensor<3xi8>" in text
    for said in (
        'backend_config = "config"',
        "has_side_effect = true",
        "api_version = 2 : i32",
        'mhlo.frontend_attributes = {_key = "value"}',
    ):
        assert said in text


def test_several_results_come_as_a_tuple():
    a, b = stablehlo_custom_call([ones(3)], "two", [(3,), (2, 2)], [torch.float32, torch.int32])
    assert "(tensor<3xf32>) -> tuple<tensor<3xf32>, tensor<2x2xi32>>" in get_stablehlo([a, b])
    assert (b.shape, b.dtype) == ((2, 2), torch.int32)


def test_operators_of_allowed_namespaces_become_calls():
    LIBRARY.define("one(Tensor x, Tensor[] more) -> (Tensor, Tensor)")
    LIBRARY.impl("one", lambda x, more: (torch.empty_like(x), x.new_empty(2)), "Meta")

    class Model(torch.nn.Module):
        def forward(self, x, y):
            a, b = torch.ops.export_custom_calls.one(x, [y])
            return a + 1, b

    program = torch.export.export(Model(), (torch.ones(3), torch.ones(4)))
    options = StableHLOExportOptions(custom_ops_allowed_in_graph={"export_custom_calls"})
    text = exported_program_to_stablehlo(program, options).get_stablehlo_text()
    assert "@export_custom_calls.one.default" in text
    assert "(tensor<3xf32>, tensor<4xf32>) -> tuple<tensor<3xf32>, tensor<2xf32>>" in text


def test_an_implementation_for_xla_may_be_a_call():
    LIBRARY.define("two(Tensor x) -> Tensor")
    LIBRARY.impl("two", torch.empty_like, "Meta")
    LIBRARY.impl(
        "two", lambda x: stablehlo_custom_call((x,), "their_two", [x.shape], [x.dtype]), "XLA"
    )

    class Model(torch.nn.Module):
        def forward(self, x):
            return torch.ops.export_custom_calls.two(x)

    made = exported_program_to_stablehlo(torch.export.export(Model(), (torch.ones(3),)))
    assert "stablehlo.custom_call @their_two" in made.get_stablehlo_text()


def test_a_tensor_is_placed_on_the_host_and_back_with_gradients():
    x = torch.ones(4, device="xla", requires_grad=True)
    y = place_to_host(x)
    text = get_stablehlo([y])
    assert "@annotate_device_placement" in text
    assert 'mhlo.frontend_attributes = {_xla_buffer_placement = "pinned_host"}}' in text
    total = place_to_device(y * 2).sum()
    total.backward()
    assert total.item() == 8.0 and x.grad.tolist() == [2.0] * 4


def test_a_tensor_of_the_cpu_is_placed_where_it_is():
    assert place_to_host(torch.ones(2)).tolist() == [1.0, 1.0]


def test_a_call_needs_a_shape_and_a_dtype_for_each_output():
    with pytest.raises(ArgumentError, match="'t': 1 operands, 2 output shapes and 1 output dtypes"):
        stablehlo_custom_call([ones(2)], "t", [(2,), (3,)], [torch.float32])


def test_outputs_that_are_no_tensors_are_refused():
    node = torch.fx.Graph().call_function(torch.sin)
    node.meta["val"] = (torch.ones(2), 3)
    with pytest.raises(ArgumentError, match="a custom call of StableHLO gives tensors alone"):
        extract_custom_call_outputs_shape_dtype(node)
    node.meta["val"] = torch.ones(2)
    assert extract_custom_call_outputs_shape_dtype(node) == ([(2,)], [torch.float32])


def test_a_call_by_its_private_name_gives_a_list():
    given = [ones(2)], "target", [(2,)], [torch.float32], False, "", 0, {"a": "b"}
    (found,) = _XLAC._xla_custom_call(*given)
    assert "@target(%arg0)" in get_stablehlo([found]) and found.shape == (2,)
    with pytest.raises(ArgumentError, match="custom call 'target': 0 operands, 1 output shapes"):
        _XLAC._xla_custom_call([], *given[1:])


def test_gradients_stay_where_they_are():
    gradient = torch.ones(2)
    assert custom_calls.to_host_backward(None, gradient) is gradient
    assert custom_calls.to_device_backward(None, gradient) is gradient
