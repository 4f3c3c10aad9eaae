"""What earlier runs found out about plans."""

import json

import numpy as np
import pytest
import torch

from torch_xdist.core.kept import known_plans, on_disk
from torch_xdist.core.kept.known_plans import KnownPlans, key_of
from torch_xdist.core.record import inference, lowering
from torch_xdist.core.record.inference import make_plan
from torch_xdist.core.trace.operators import op_of
from torch_xdist.core.trace.plans import SINGLE, CpuOnly
from torch_xdist.core.trace.tensor_types import dense_type, tensor_type


@pytest.fixture
def folder(monkeypatch):
    """What is kept, by name, in the place of a folder."""
    kept = {}
    monkeypatch.setattr(on_disk, "is_on", lambda: True)
    monkeypatch.setattr(on_disk, "find", kept.get)
    monkeypatch.setattr(on_disk, "keep", kept.__setitem__)
    return kept


@pytest.fixture
def known(folder, monkeypatch):
    """Plans as another run finds them, which `again()` begins."""

    def again():
        found = KnownPlans()
        monkeypatch.setattr(inference, "KNOWN", found)
        return found

    return again


TYPES = [dense_type((2, 3), torch.float32), None, tensor_type((3, 2), torch.bool, (1, 3), 6)]


def test_another_run_finds_the_very_types(known):
    first = known()
    first.keep("key", TYPES, SINGLE)
    first.write()
    types, structure = known().find("key")
    assert structure == SINGLE and all(a is b for a, b in zip(types, TYPES, strict=True))
    assert known().find("other") is None


def test_what_is_damaged_is_nothing(known, folder):
    known().write()
    for content in (b"{", b"[]", b"\xff"):
        folder[known_plans._name()] = content
        assert known().find("key") is None


def test_several_processes_add_to_each_other_up_to_a_bound(known, folder, monkeypatch):
    monkeypatch.setattr(known_plans, "_MOST", 3)
    one, other = known(), known()
    for found in (one, other):
        found.find("")
    one.keep("a", TYPES, SINGLE)
    one.write()
    for key in "bcd":
        other.keep(key, TYPES, SINGLE)
    other.write()
    assert sorted(json.loads(folder[known_plans._name()])) == ["b", "c", "d"]


def test_a_job_whose_shapes_never_end_holds_no_more_than_are_kept(known, monkeypatch):
    monkeypatch.setattr(known_plans, "_MOST", 3)
    found = known()
    for number in range(9):
        found.keep(f"{number}", TYPES, SINGLE)
    assert [number for number in range(9) if found.find(f"{number}")] == [6, 7, 8]


def test_few_that_are_new_wait_for_more_or_for_the_end(known, folder):
    found = known()
    for number in range(20):
        found.keep(f"{number}", TYPES, SINGLE)
    found.write()
    found.keep("late", TYPES, SINGLE)
    found.write()
    assert "late" not in json.loads(folder[known_plans._name()])
    found.write(all_=True)
    assert "late" in json.loads(folder[known_plans._name()])


def test_a_known_plan_is_neither_inferred_nor_tried(known, monkeypatch):
    op, x = op_of("aten.add.Tensor"), torch.ones(4, 7).to("xla")
    known()
    first = make_plan(op, (x, 2.5), {})
    inference.KNOWN.write(all_=True)
    known()
    monkeypatch.setattr(inference, "infer", None)
    monkeypatch.setattr(lowering, "_tried", None)
    again = make_plan(op, (x, 2.5), {})
    assert (again.types, again.args[0].index) == (first.types, first.args[0].index)
    with pytest.raises(TypeError, match="not callable"):
        make_plan(op, (torch.ones(5).to("xla"), 2.5), {})


def test_a_decomposition_that_is_known_is_recorded_when_it_is_needed(known, monkeypatch):
    op, x = op_of("aten.unsafe_split.Tensor"), torch.rand(4).to("xla")
    assert str(op.func) not in lowering.LOWERINGS
    known()
    make_plan(op, (x, 3), {})
    inference.KNOWN.write(all_=True)
    known()
    plan = make_plan(op, (x, 3), {})
    assert plan.compute._subgraph is None
    found = plan.compute([np.arange(4.0, dtype=np.float32)], [], None)
    assert plan.compute._subgraph is not None
    assert [part.tolist() for part in found] == [[0, 1, 2], [3]]


def test_a_wrong_call_raises_torchs_error_in_every_run(known):
    op, x = op_of("aten.mm.default"), torch.ones(2, 3).to("xla")
    for _ in range(2):
        known()
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            make_plan(op, (x, x), {})
        inference.KNOWN.write(all_=True)


def test_what_only_the_cpu_computes_is_asked_in_every_run(known):
    op, x = op_of("aten.nonzero.default"), torch.ones(2, 3).to("xla")
    known()
    assert isinstance(make_plan(op, (x,), {}), CpuOnly)
    assert not inference.KNOWN._new


def test_a_row_of_the_users_is_not_known(known, monkeypatch):
    op, x = op_of("aten.sin.default"), torch.ones(3).to("xla")
    monkeypatch.setitem(lowering.LOWERINGS, "aten.sin.default", lambda self: self)
    known()
    make_plan(op, (x,), {})
    assert not inference.KNOWN._new


def test_the_platform_and_the_default_dtype_count(folder):
    key = key_of("aten.add", "cpu", (1,))
    assert key not in (key_of("aten.add", "tpu", (1,)), "")
    torch.set_default_dtype(torch.float64)
    try:
        assert key_of("aten.add", "cpu", (1,)) != key
    finally:
        torch.set_default_dtype(torch.float32)


def test_nothing_is_known_of_what_has_no_description_or_no_folder(folder, monkeypatch):
    assert key_of("row", "cpu", (lambda: 1,)) == ""
    monkeypatch.setattr(on_disk, "is_on", lambda: False)
    assert key_of("row", "cpu", (1,)) == ""
