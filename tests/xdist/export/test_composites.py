"""Marked regions become `stablehlo.composite`, and compute what they did."""

import json

import pytest
import torch

from torch_xdist.errors import ArgumentError
from torch_xdist.export import markers
from torch_xdist.export.markers import BoundaryMetadata, StableHLOCompositeBuilder, mark_tensor_xla
from torch_xdist.export.pending import get_stablehlo
from torch_xdist.export.programs import exported_program_to_stablehlo


def ones(*shape):
    return torch.ones(*shape).to("xla")


def test_what_lies_between_marks_is_a_composite_of_their_name():
    x = mark_tensor_xla(ones(5) + 1, "test.p", 0, "0", True)
    y = mark_tensor_xla(x * 3, "test.p", 0, "0", False)
    text = get_stablehlo([y - 1])
    assert text.count('stablehlo.composite "test.p"') == 1
    assert text.count("{decomposition = @test.p.impl}") == 1
    body = text[text.index("@test.p.impl(") :]
    assert "stablehlo.multiply" in body and "stablehlo.subtract" not in body
    assert (y - 1).tolist() == [5.0] * 5


def test_two_instances_have_bodies_of_their_own_and_attributes():
    outs = []
    for scale in (0.25, 2):
        builder = StableHLOCompositeBuilder("test.scaled", {"scale": scale})
        outs.append(builder.mark_outputs(builder.mark_inputs(ones(3)) * (scale + 1)))
    text = get_stablehlo(outs)
    attributes = "{composite_attributes = {scale = %s}, decomposition = @test.scaled.impl%s}"
    assert attributes % ("2.500000e-01 : f32", "") in text
    assert attributes % ("2 : i64", "_0") in text


def test_attributes_are_numbers_words_and_lists_of_numbers():
    told = {"i": 1, "f": 2.5, "b": True, "s": "word", "l": [1, 2], "m": [1.0, 1.5], "n": [True]}
    builder = StableHLOCompositeBuilder("test.told", told)
    text = get_stablehlo([builder.mark_outputs(builder.mark_inputs(ones(2)) + 1)])
    for part in (
        "i = 1 : i64",
        "f = 2.500000e+00 : f32",
        "b = true",
        's = "word"',
        "l = dense<[1, 2]> : tensor<2xi64>",
        "m = dense<[1.000000e+00, 1.500000e+00]> : tensor<2xf32>",
        "n = dense<true> : tensor<1xi1>",
    ):
        assert part in text


def test_several_inputs_and_outputs_stand_by_their_positions():
    builder = StableHLOCompositeBuilder("test.both")
    x, y = builder.mark_inputs(ones(2), ones(2, 2))
    a, b = builder.mark_outputs(y + 1, x * 2)
    text = get_stablehlo([a.sum() + b.sum()])
    assert 'stablehlo.composite "test.both" %' in text
    assert "(tensor<2xf32>, tensor<2x2xf32>) -> (tensor<2x2xf32>, tensor<2xf32>)" in text
    assert (a.sum() + b.sum()).item() == 12.0


def test_what_is_read_besides_the_marked_inputs_is_an_operand_too():
    besides = ones(2) + 0.5
    besides_leaf = ones(2)
    builder = StableHLOCompositeBuilder("test.more")
    y = builder.mark_outputs(builder.mark_inputs(ones(2)) + besides_leaf * besides)
    assert "(tensor<2xf32>, tensor<2xf32>" in get_stablehlo([y])
    assert y.tolist() == [2.5, 2.5]


def test_one_composite_lies_in_another():
    outer, inner = StableHLOCompositeBuilder("test.outer"), StableHLOCompositeBuilder("test.inner")
    x = outer.mark_inputs(ones(2))
    y = inner.mark_outputs(inner.mark_inputs(x + 1) * 2)
    text = get_stablehlo([outer.mark_outputs(y - 1)])
    main, _, bodies = text.partition("return")
    assert 'stablehlo.composite "test.outer"' in main and "test.inner" not in main
    assert 'stablehlo.composite "test.inner"' in bodies


def test_gradients_pass_marks():
    x = torch.ones(3, device="xla", requires_grad=True)
    builder = StableHLOCompositeBuilder("test.grad")
    builder.mark_outputs(builder.mark_inputs(x) * 2).sum().backward()
    assert x.grad.tolist() == [2.0] * 3


def test_a_builder_in_a_model_is_exported_and_runs():
    class Model(torch.nn.Module):
        def forward(self, x):
            builder = StableHLOCompositeBuilder("test.model", {"scale": 0.5})
            return builder.mark_outputs(builder.mark_inputs(x) * 0.5) + 1

    program = torch.export.export(Model(), (torch.ones(2),))
    made = exported_program_to_stablehlo(program)
    assert 'stablehlo.composite "test.model"' in made.get_stablehlo_text()
    assert made(torch.ones(2)).tolist() == program.module()(torch.ones(2)).tolist() == [1.5, 1.5]


def test_a_program_may_be_exported_with_tensors_of_the_device():
    class Model(torch.nn.Module):
        def forward(self, x):
            return mark_tensor_xla(
                mark_tensor_xla(x, "a.b", 0, "0", True) + 2, "a.b", 0, "0", False
            )

    x = ones(2)
    module = torch.export.export(Model(), (x,)).module()
    assert 'stablehlo.composite "a.b"' in get_stablehlo([module(x)])


def test_an_output_that_is_missing_is_named():
    x = mark_tensor_xla(ones(2), "test.gap", 0, "7", True)
    y = mark_tensor_xla(x + 1, "test.gap", 2, "7", False)
    with pytest.raises(
        ArgumentError, match=r"'test.gap' \(id '7'\): its outputs are marked at pos"
    ):
        get_stablehlo([y])


def test_a_name_without_a_namespace_is_refused():
    builder = StableHLOCompositeBuilder("scaled")
    with pytest.raises(ArgumentError, match=r"'scaled': StableHLO wants a namespace and a name"):
        get_stablehlo([builder.mark_outputs(builder.mark_inputs(ones(2)) * 2)])


def test_an_input_alone_is_no_composite():
    x = mark_tensor_xla(ones(2), "test.open", 0, "0", True)
    assert "composite" not in get_stablehlo([x + 1])


@pytest.mark.parametrize(
    ("attr", "message"),
    [
        ([1], "must be a Python dictionary, and it is a list"),
        ({1: 2}, "name must be a Python str, and 1 is none"),
        ({"a": None}, "value must be either Python str.*; 'a' is None"),
        ({"a": [1, 2.0]}, r"'a' is \[1, 2\.0\]"),
        ({"a": ["x"]}, r"'a' is \['x'\]"),
    ],
)
def test_attributes_that_cannot_be_are_named(attr, message):
    with pytest.raises(ArgumentError, match=message):
        markers.serialize_composite_attr(attr)


def test_only_tensors_can_be_marked():
    with pytest.raises(ArgumentError, match=r"must be a torch tensor\. Got <class 'int'>"):
        StableHLOCompositeBuilder("test").mark_inputs(3)


def test_attributes_come_back_and_elsewhere_a_mark_is_nothing():
    told = {"a": 1}
    assert markers.deserialize_composite_attr(markers.serialize_composite_attr(told)) == told
    assert markers.serialize_composite_attr(None) is markers.deserialize_composite_attr(None)
    x = torch.ones(2)
    assert markers.mark_tensor(x, "test", 0, "0", True) is x
    assert mark_tensor_xla(x, "test", 0, "0", True).tolist() == [1.0, 1.0]


def test_a_mark_can_be_made_of_its_json():
    told = BoundaryMetadata("test.json", 0, "0", False, {"a": 1})
    info = json.dumps(told, cls=markers.BoundaryMetadataSerializer)
    text = get_stablehlo([markers.xla_mark_tensor(ones(2) + 1, info)])
    assert 'stablehlo.composite "test.json"' in text and "a = 1 : i64" in text


def test_a_mark_of_a_tensor_without_values_has_its_type():
    x = torch.empty(2, 3, dtype=torch.int8, device="meta")
    found = markers.mark_tensor_meta(x, "name", 0, "id", True, None)
    assert (found.shape, found.dtype, found.device.type) == ((2, 3), torch.int8, "meta")
