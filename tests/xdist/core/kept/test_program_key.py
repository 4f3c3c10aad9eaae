"""The key of a program: another one for all that would make another program."""

import jax
import pytest
import torch

from torch_xdist.core.devices import precision
from torch_xdist.core.kept import on_disk, program_key
from torch_xdist.core.programs import program
from torch_xdist.core.programs.launch import prepare
from torch_xdist.core.run.device_trace import trace_of_thread
from torch_xdist.core.trace.trace import Tape


@pytest.fixture(autouse=True)
def _kept(monkeypatch):
    monkeypatch.setattr(on_disk, "is_on", lambda: True)


def tape_of(make):
    """The tape that a call records, and the device; nothing of it runs."""
    trace = trace_of_thread(torch.empty(0, device="xla").value.trace.device)
    before, trace.tape = trace.tape, Tape()
    try:
        kept = make()
        return trace.tape, trace.device, kept
    finally:
        trace.tape = before


def key_of(make, **named):
    """The key of what a call records, called as it is but for what is named."""
    tape, device, kept = tape_of(make)
    launch = prepare(tape, device, [len(tape.entries) - 1], may_donate=False)
    call = launch.leaves, named.get("mask", launch.mask), named.get("outs", launch.outs)
    signature = program.signature(launch, program.make(launch))
    del kept
    return program_key.of(tape, device, call, signature)


def doubled(rows=4, factor=2.5, dtype=torch.float32):
    return torch.ones(rows, 2, dtype=dtype).to("xla") * factor


def test_the_same_rows_have_one_key_whatever_their_numbers_are():
    assert key_of(doubled) == key_of(doubled) == key_of(lambda: doubled(factor=3.5)) != ""


@pytest.mark.parametrize(
    "other",
    [
        lambda: doubled(rows=5),
        lambda: doubled(factor=2),
        lambda: doubled(dtype=torch.float64),
        lambda: doubled().sum(0),
        lambda: doubled().sum(1),
        lambda: torch.ones(4, 2).to("xla") + 2.5,
    ],
)
def test_other_rows_have_another(other):
    assert key_of(other) not in (key_of(doubled), "")


def test_what_is_donated_and_what_is_returned_count():
    keys = {key_of(doubled), key_of(doubled, mask=(True,)), key_of(doubled, outs=())}
    assert len(keys) == 3


@pytest.mark.on_cpu
def test_the_precision_of_products_and_torchs_default_dtype_count():
    chosen, before = precision.chosen(), key_of(doubled)
    try:
        precision.choose("highest" if chosen != "highest" else "high")
        assert key_of(doubled) != before
    finally:
        precision.choose(chosen)
    torch.set_default_dtype(torch.float64)
    try:
        assert key_of(doubled) != before
    finally:
        torch.set_default_dtype(torch.float32)
    assert key_of(doubled) == before


def test_settings_of_jax_and_flags_of_xla_count(monkeypatch):
    before = key_of(doubled)
    with monkeypatch.context() as patch:
        patch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
        assert key_of(doubled) != before
    of_jax = jax.config.values["jax_cpu_enable_async_dispatch"]
    try:
        jax.config.update("jax_cpu_enable_async_dispatch", not of_jax)
        assert key_of(doubled) != before
    finally:
        jax.config.update("jax_cpu_enable_async_dispatch", of_jax)
    assert key_of(doubled) == before


def test_the_source_of_the_package_counts(monkeypatch):
    before = key_of(doubled)
    monkeypatch.setattr(program_key, "source", lambda: "another")
    assert key_of(doubled) != before


def test_a_changed_file_is_another_source(tmp_path, monkeypatch):
    file = tmp_path / "ops" / "pointwise.py"
    file.parent.mkdir()
    file.write_text("a")
    monkeypatch.setattr(program_key.torch_xdist, "__file__", str(tmp_path / "__init__.py"))
    before = program_key.source.__wrapped__()
    assert program_key.source.__wrapped__() == before
    file.write_text("b")
    assert program_key.source.__wrapped__() != before


def test_a_users_jax_function_has_none():
    import torch_xla.core.xla_builder as xb

    assert key_of(lambda: xb.call_jax(lambda x: x + 1, (torch.ones(3).to("xla"),))) == ""


def test_where_nothing_is_kept_there_is_none(monkeypatch):
    monkeypatch.setattr(on_disk, "is_on", lambda: False)
    assert key_of(doubled) == ""
