"""`xm.get_stablehlo`: the graph that is pending, as a function of what it reads."""

import re

import pytest
import torch

import torch_xla
from torch_xdist.core.run import cuts
from torch_xdist.export import modules, pending
from torch_xdist.export.private_names import _get_stablehlo, _run_stablehlo


@pytest.fixture
def pair():
    torch_xla.sync()
    x, y = torch.ones(2, 3).to("xla"), torch.ones(3, 2).to("xla")
    torch_xla.sync()
    return x, y


def signature(text):
    return re.search(r"@main\((.*?)\) -> ", text)[1]


def test_parameters_stand_in_torch_xlas_order_the_last_operand_first(pair):
    x, y = pair
    text = pending.get_stablehlo([x.mm(y)])
    assert signature(text) == "%arg0: tensor<3x2xf32>, %arg1: tensor<2x3xf32>"
    assert text.count("stablehlo.dot_general") == 1


def test_without_tensors_it_is_all_that_is_pending(pair):
    x, y = pair
    z = x.mm(y)  # noqa: F841 so that it is pending
    assert "stablehlo.dot_general" in pending.get_stablehlo()


def test_nothing_runs_and_everything_stays_pending(pair):
    before = cuts.REASONS.total()
    z = pair[0] + 1
    pending.get_stablehlo([z])
    pending.get_stablehlo_bytecode([z])
    assert cuts.REASONS.total() == before
    assert z.tolist() == [[2.0] * 3] * 2


def test_what_is_not_needed_is_not_there(pair):
    x, y = pair
    unneeded = y * 3  # noqa: F841 so that it is pending
    assert signature(pending.get_stablehlo([x + 1])) == "%arg0: tensor<2x3xf32>"


def test_numbers_are_parameters_unless_all_shall_be_constants(pair):
    x, _ = pair
    assert re.search(r"%arg\d: tensor<f32>", pending.get_stablehlo([x * 5]))
    pending.set_all_numbers_special_scalars(True)
    try:
        assert "dense<5.000000e+00> : tensor<2x3xf32>" in pending.get_stablehlo([x * 5])
    finally:
        pending.set_all_numbers_special_scalars(False)


def test_the_bytecode_is_a_portable_artifact_that_runs(pair):
    x, y = pair
    bytecode = pending.get_stablehlo_bytecode([x.mm(y)])
    assert "stablehlo.dot_general" in modules.module_of(bytecode)
    (product,) = _run_stablehlo(bytecode, [y, x])
    assert product.tolist() == [[3.0, 3.0], [3.0, 3.0]]


def test_locations_stand_behind_operations_where_they_are_asked_for(pair, monkeypatch):
    z = pair[0] + 1
    assert "test_pending.py" not in pending.get_stablehlo([z])
    monkeypatch.setenv("XLA_HLO_DEBUG", "1")
    assert "stablehlo.add" in pending.get_stablehlo([z]) and "#loc" in pending.get_stablehlo([z])


def test_the_private_call_gives_text_or_bytecode(pair):
    z = pair[0] + 1
    assert _get_stablehlo([z], "", (), False) == pending.get_stablehlo([z])
    assert _get_stablehlo([z], "", (), True).startswith(b"ML")


def test_views_and_writes_in_place_are_as_they_read(pair):
    x, _ = pair
    z = torch.zeros(2, 3, device="xla")
    z[0].add_(x[1])
    text = pending.get_stablehlo([z])
    assert signature(text) == "%arg0: tensor<2x3xf32>"
    assert z.tolist() == [[1.0] * 3, [0.0] * 3]


def test_the_text_draws_the_random_numbers_of_the_program(pair):
    z = torch.rand(2, device="xla") + pair[0][:, 0]
    bytecode = pending.get_stablehlo_bytecode([z])
    (again,) = _run_stablehlo(bytecode, [pair[0]])
    assert again.tolist() == z.tolist()
