"""Where rows were recorded: notes, named blocks, and that nothing is noted unasked."""

import copy
import re

import pytest
import torch

import torch_xla
import torch_xla.debug.profiler as xp
from torch_xdist import settings
from torch_xdist.core.tapes.partial_run import copy_rows
from torch_xdist.core.trace import notes
from torch_xdist.core.trace.trace import Tape
from torch_xdist.core.trace.user_frames import Place

_XLAC = torch_xla._XLAC


def test_nothing_is_noted_unasked():
    assert not _XLAC._get_ir_debug()
    torch_xla.sync()
    x = torch.ones(2, device="xla") + 1
    assert type(x.value.trace.tape.entries) is list
    assert "location=" not in _XLAC._get_xla_tensors_text([x])
    assert _XLAC._set_xla_custom_op_name_prefix(x, "prefix/", 1)
    assert not _XLAC._set_xla_custom_op_name_prefix(torch.ones(1), "prefix/", 1)
    assert "Frames" not in _XLAC._xla_tensors_report(0)


@pytest.mark.parametrize("name", ["XLA_IR_DEBUG", "XLA_HLO_DEBUG"])
def test_either_variable_asks_for_notes(name, monkeypatch):
    monkeypatch.setattr(notes.Asked, "is_noting", None)
    assert not _XLAC._get_ir_debug()
    monkeypatch.setenv(name, "1")
    assert settings.asks_for_notes() and _XLAC._get_ir_debug()
    # A device is used.
    notes.decide()
    monkeypatch.delenv(name)
    assert _XLAC._get_ir_debug()


def test_a_row_knows_its_line_and_its_blocks(noting):
    with xp.Trace("outer"):
        x = torch.ones(2, device="xla")
        with xp.Trace("a"):
            pass
        with xp.Trace("a"):
            y = x.sin()
    text = _XLAC._get_xla_tensors_text([y])
    at = "location=test_a_row_knows_its_line_and_its_blocks@test_notes.py:"
    assert f"), scope=outer.1.a.2, {at}" in text and "aten::sin(" in text
    z = y.cos()
    assert re.search(rf"aten::cos\(%\d+\), {at}", _XLAC._get_xla_tensors_text([z]))


def test_blocks_are_numbered_anew_in_each_step(noting):
    def scope():
        with xp.Trace("block"):
            return notes.current_scope()

    assert [scope(), scope()] == ["block.1", "block.2"]
    torch_xla.sync(reset_scope=False)
    assert scope() == "block.3"
    torch_xla.sync()
    assert scope() == "block.1"


def test_a_step_may_go_on_inside_a_block_where_that_is_said():
    with xp.Trace("block"):
        torch_xla.sync(reset_scope=False)


def test_a_write_and_several_results_are_noted_too(noting):
    x = torch.ones(4, device="xla")
    x += 1
    values, places = x.topk(2)
    text = _XLAC._get_xla_tensors_text([values, places])
    rows = [line for line in text.splitlines() if " = " in line and "prim::Constant" not in line]
    assert all("location=" in row for row in rows)


def test_what_was_recorded_before_has_no_note():
    torch_xla.sync()
    x = torch.ones(2, device="xla").sin()
    before = x.value.trace.tape
    _XLAC._set_ir_debug(True)
    try:
        y = x.cos()
        text = _XLAC._get_xla_tensors_text([y])
        assert re.search(r"aten::sin\(%\d+\)\n", text)
        assert re.search(r"aten::cos\(%\d+\), location=", text)
        assert x.value.trace.tape is not before
        noted = x.value.trace.tape
        _XLAC._set_ir_debug(True)
        assert x.value.trace.tape is noted
        assert y.tolist() == torch.ones(2).sin().cos().tolist()
    finally:
        _XLAC._set_ir_debug(False)
    torch_xla.sync()


def test_copied_rows_keep_their_notes(noting):
    x = torch.ones(2, device="xla").sin()
    source = x.value.trace.tape
    target = Tape()
    places = copy_rows(source, {0, 1, x.value.slot}, target)
    kept = notes.notes_of(target.entries)[places[x.value.slot]]
    assert kept == notes.notes_of(source.entries)[x.value.slot]
    # One that has none there has none here.
    bare = copy.copy(source)
    bare.entries = [*source.entries]
    assert not notes.notes_of(bare.entries)
    target = Tape()
    copy_rows(bare, {0, 1, x.value.slot}, target)
    assert not notes.notes_of(target.entries)


@pytest.mark.on_cpu
def test_the_report_names_living_tensors_and_their_frames(noting):
    with xp.Trace("reading"):
        x = torch.tensor([2.0, 3.0], device="xla")
    y = x.sin()
    report = _XLAC._xla_tensors_report(0, "xla:0")
    about = "shape=f32[2]{0}, device=CPU:0, ir_nodes="
    assert f"Tensor: id={id(y)}, {about}2\nPython Frames:\n" in report
    assert f"Tensor: id={id(x)}, {about}1\n" in report
    assert "xla::device_data(), scope=reading.1, location=test_the_report_names" in report
    assert f"id={id(y)}" not in _XLAC._xla_tensors_report(2)


def test_the_users_prefix_goes_to_all_that_leads_to_a_tensor(noting):
    x = torch.ones(2, device="xla").sin()
    assert _XLAC._set_xla_custom_op_name_prefix(x, "Model[a]/", 2)
    y = x.cos()
    assert _XLAC._set_xla_custom_op_name_prefix(y, "Model[b]/", 0)
    found = notes.notes_of(y.value.trace.tape.entries)
    assert found[x.value.slot].name("aten__sin") == "Model[a]/aten__sin"
    assert len(found[x.value.slot].places) == 2
    assert found[y.value.slot].name("aten__cos") == "Model[b]/aten__cos"
    assert found[y.value.slot].places == ()


def test_frames_of_ours_are_not_told():
    place = Place("f", "train.py", 3)
    note = notes.Note("a::b.1", (Place("add", notes.__file__, 1), place))
    assert note.places == (place,) and str(place) == "f (train.py:3)"
    assert note.name("aten__add") == "a__b.1/aten__add"
