"""Where rows were recorded, in HLO: metadata of operations before and after XLA's work."""

import re

import pytest
import torch

import torch_xla
import torch_xla.core.xla_builder as xb
import torch_xla.debug.profiler as xp
from torch_xdist.core.programs import jax_internals
from torch_xdist.core.programs.program import PROGRAMS
from torch_xdist.core.run import cuts
from torch_xdist.torch_xla_compat import graphs
from torch_xla.experimental.custom_kernel import gmm
from torch_xla.experimental.scan import scan

_XLAC = torch_xla._XLAC


def test_operations_say_operator_block_and_line(noting):
    x = torch.ones(2, 3).to("xla")
    with xp.Trace("conv1"):
        y = x.sin()
    text = _XLAC._get_xla_tensors_hlo([y])
    assert re.search(
        r" sine\(f32\[2,3\]\{1,0\} %p0\.1\), metadata=\{op_type=\"aten__sin\""
        r" op_name=\"conv1\.1/aten__sin\" source_file=\"[^\"]*test_locations.py\" source_line=\d+"
        r" stack_frame_id=\d+\}",
        text,
    )
    text = _XLAC._get_xla_tensors_hlo([y.relu()])
    assert '"conv1.1/aten__sin"' in text and 'op_type="aten__relu" op_name="aten__relu"' in text


@torch.library.custom_op("library_of_this_test::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x):
    return torch.empty_like(x)


def test_operators_of_a_library_and_functions_of_jax_have_names_in_graphs():
    x = torch.ones(2, 2).to("xla")
    sizes = torch.tensor([1, 1]).to("xla")
    nodes = [
        twice(x), xb.call_jax(lambda x: x + 1, (x,)), gmm(x, x.expand(2, 2, 2), sizes)
    ]  # fmt: skip
    for node, name in zip(nodes, ("library_of_this_test::twice", "xla::jax_func", "xla::gmm")):
        assert re.search(rf"= f32\[2,2\]\S* {name}\(", _XLAC._get_xla_tensors_text([node]))


@pytest.mark.on_cpu
def test_what_xla_compiled_says_it_too(noting, monkeypatch):
    x = torch.ones(2, 5).to("xla")
    with xp.Trace("block"):
        y = torch.nn.functional.relu(x.cos())
    monkeypatch.setenv("XLA_DUMP_POST_OPTIMIZATIONS", "1")
    text = _XLAC._get_xla_tensors_hlo([y])
    assert 'op_type="aten__cos" op_name="block.1/aten__cos" source_file=' in text
    torch_xla.sync()
    compiled = [*PROGRAMS._programs.values()][-1].executable.text()
    assert 'op_name="block.1/aten__cos"' in compiled


def test_a_linear_layer_has_the_names_of_what_torch_makes_of_it(noting):
    layer = torch.nn.Linear(3, 4).to("xla")
    x = torch.ones(2, 3).to("xla")
    text = _XLAC._get_xla_tensors_hlo([layer(x)])
    assert 'op_type="aten__permute"' in text and 'op_type="aten__addmm"' in text
    assert "torch/nn/modules/linear.py" in text
    text = _XLAC._get_xla_tensors_hlo([torch.nn.functional.linear(x, layer.weight)])
    assert 'op_type="aten__mm"' in text


def test_functions_inside_a_row_are_named_by_their_caller(noting):
    x = torch.rand(4, 4).to("xla")
    text = _XLAC._get_xla_tensors_hlo([torch.where(x > 0, x.relu(), x.sort()[0])])
    places = set(re.findall(r'source_file="([^"]*)"', text))
    assert len(places) == 1 and places.pop().endswith("test_locations.py")


def test_nothing_is_told_unasked():
    x = torch.ones(2, 3).to("xla")
    text = _XLAC._get_xla_tensors_hlo([x.sin()])
    assert "metadata" not in text and "<row" not in text and " sine(" in text


def test_the_line_does_not_change_the_program(noting):
    def first(x):
        return x.sin() * 3

    def second(x):
        return x.sin() * 4

    hashes = set()
    for function in (first, second):
        y = function(torch.ones(3, 11, device="xla"))
        torch_xla.sync()
        hashes.add(cuts.LOG[-1].fingerprint)
        assert y.shape == (3, 11)
    assert len(hashes) == 1 and not cuts.LOG[-1].compiled


def test_modules_and_protos_say_it_as_well(noting):
    x = torch.ones(2, 3).to("xla")
    y = x.tan()
    proto = _XLAC._get_xla_tensors_hlo_proto([y])
    assert b"aten__tan" in proto
    computation = xb.computation_from_module_proto("name", proto)
    assert "tan" in xb.get_computation_hlo(computation)
    assert 'loc("aten__tan' in graphs.stablehlo_of([y])


def test_without_its_mlir_jaxs_own_locations_stay(monkeypatch):
    monkeypatch.setattr(jax_internals, "ir", None)
    assert jax_internals.relocate(None, lambda name: None) is None


def test_the_rows_of_a_loop_have_their_own_lines(noting):
    def body(carry, x):
        carry = carry + x.sin()
        return carry, x.cosh()

    xs = torch.ones(3, 2).to("xla").requires_grad_()
    carry, ys = scan(body, torch.zeros(2).to("xla"), xs)
    text = _XLAC._get_xla_tensors_hlo([carry, ys])
    lines = {
        op: (file, int(line))
        for op, file, line in re.findall(
            r'op_name="(\w+)" source_file="([^"]*)" source_line=(\d+)', text
        )
    }
    first = body.__code__.co_firstlineno
    assert lines["aten__sin"] == (__file__, first + 1)
    assert lines["aten__cosh"] == (__file__, first + 2)
    assert lines["xla__scan"] == (__file__, first + 5)
    (carry.sum() + ys.sum()).backward()
    torch_xla.sync()
    assert torch.allclose(xs.grad.cpu(), torch.cos(torch.ones(3, 2)) + torch.sinh(torch.ones(3, 2)))
