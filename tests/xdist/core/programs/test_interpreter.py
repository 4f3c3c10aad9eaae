"""Walking the rows of a tape: what JAX traces once, and that its program is the same."""

import jax
import numpy as np
import torch

from torch_xdist.core.programs import interpreter
from torch_xdist.core.programs.interpreter import ScalarFeed, interpret
from torch_xdist.core.run.device_trace import trace_of_thread
from torch_xdist.core.trace.trace import Tape, rows_of


def tape_of(make):
    """The tape that a call records, with the slot of its result; nothing of it runs."""
    trace = trace_of_thread(torch.empty(0, device="xla").value.trace.device)
    before, trace.tape = trace.tape, Tape()
    try:
        return trace.tape, make().value.slot
    finally:
        trace.tape = before


def layers(count, dropout=0.0):
    x = torch.ones(3, 4).to("xla")
    for _ in range(count):
        x = torch.nn.functional.dropout(torch.nn.functional.gelu(x) * 1.5, dropout)
    return x


def text_of(tape, slot, *, is_traced):
    floats, ints = interpreter.scalars_of(tape, tape.entries)

    def step(leaves, floats, ints):
        env = dict(zip(tape.buffers, leaves))
        interpret(tape.entries, env, ScalarFeed(floats, ints), is_traced=is_traced)
        return env[slot]

    leaves = list(tape.buffers.values())
    return jax.jit(step).lower(leaves, np.array(floats), np.array(ints, np.int64)).as_text()


def test_rows_of_one_plan_are_traced_once_and_the_program_is_the_same(monkeypatch):
    tape, slot = tape_of(lambda: layers(5))
    plan = next(row[0] for _, row in rows_of(tape.entries) if "gelu" in row[0].name)
    compute, times = plan.compute, []

    def counted(*args):
        times.append(1)
        return compute(*args)

    monkeypatch.setattr(plan, "compute", counted)
    once = text_of(tape, slot, is_traced=True)
    assert len(times) == 1
    assert text_of(tape, slot, is_traced=False) == once and len(times) == 6


def test_random_rows_of_one_plan_draw_numbers_of_their_own():
    torch.manual_seed(3)
    x = torch.ones(64, device="xla")
    kept = [torch.nn.functional.dropout(x) for _ in range(3)]
    assert len({tuple(part.tolist()) for part in kept}) == 3


def test_what_is_not_traced_is_computed_as_it_is():
    tape, slot = tape_of(lambda: layers(2))
    env = dict(tape.buffers)
    floats, ints = interpreter.scalars_of(tape, tape.entries)
    interpret(tape.entries, env, ScalarFeed(np.array(floats), np.array(ints)))
    expected = torch.ones(3, 4)
    for _ in range(2):
        expected = torch.nn.functional.gelu(expected) * 1.5
    torch.testing.assert_close(torch.tensor(np.asarray(env[slot]).tolist()), expected)
