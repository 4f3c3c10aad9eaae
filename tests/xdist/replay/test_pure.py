"""Calls of pure functions: which are replayed, which recorded, and what is told."""

import threading

import pytest
import torch
from torch import nn

import torch_xla
import torch_xla.core.xla_model as xm
from torch_xdist import metrics, settings
from torch_xdist.core.programs import program
from torch_xdist.core.run import cuts
from torch_xdist.progress import PROGRESS
from torch_xdist.training.eager import eager_mode_context
from torch_xla.experimental.scan import scan

pytestmark = pytest.mark.usefixtures("counted_from_zero")


def replayed() -> int:
    return metrics.counter_value("ReplayedStep") or 0


def trained(step, turns: int = 4):
    """Call a step until it is replayed; returns the last result."""
    for _ in range(turns):
        result = step()
    return result


def small_step(**options):
    torch.manual_seed(0)
    model = nn.Linear(3, 2).to("xla")
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)
    x = torch.ones(4, 3).to("xla")

    def step():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return torch_xla.compile(step, pure=True, **options), model, optimizer, x


def test_a_step_is_replayed_from_its_fourth_call_on():
    step, *_ = small_step()
    losses = [step() for _ in range(6)]
    assert replayed() == 3
    assert all(not loss.requires_grad for loss in losses)
    values = [loss.item() for loss in losses]
    assert len({*values}) == 6


def test_a_step_is_replayed_where_dynamo_looks_at_every_frame():
    both = torch.compile(torch.add, backend="openxla", fullgraph=True)
    with pytest.raises(Exception, match="device"):
        both(torch.ones(2, device="xla"), torch.ones(2))
    # From its failure on Python calls functions in another way, which keeps arguments longer.
    try:
        step, *_ = small_step()
        for _ in range(6):
            step()
    finally:
        torch._dynamo.eval_frame.set_eval_frame(None)
    assert replayed() == 3


def test_a_replay_counts_as_a_step_does():
    step, *_ = small_step()
    trained(step)
    metrics.clear_all()
    before = PROGRESS.step
    step()
    assert replayed() == 1
    assert metrics.counter_value("MarkStep") == 2 and PROGRESS.step == before + 2
    assert metrics.counter_value("CachedCompile") == 1
    assert metrics.counter_value("Cut.sync") == 1
    assert metrics.metric_data("ExecuteTime")[0] == 1
    assert cuts.LOG[-1].reason == "sync" and "test_pure.py" in cuts.LOG[-1].where
    assert "test_pure.py" in PROGRESS.where


def test_step_closures_run_after_a_replay():
    step, *_ = small_step()
    trained(step)
    seen = []
    xm.add_step_closure(lambda: seen.append(replayed()))
    step()
    assert len(seen) == 1 and replayed() == 2


def test_what_is_pending_runs_before_a_replay():
    step, model, *_ = small_step()
    trained(step)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.zero_()
    assert step().item() == 0.0
    assert replayed() == 2


def test_decorators_take_pure_too():
    @torch_xla.compile(pure=True)
    def double(x):
        return x * 2

    for n in range(5):
        assert double(torch.full((2,), float(n)).to("xla")).tolist() == [2 * n, 2 * n]
    assert replayed() == 3


def test_a_function_that_changes_what_it_reads_is_told_and_never_replayed(capfd):
    calls = []

    def double(x):
        calls.append(1)
        return x * 2

    double = torch_xla.compile(double, pure=True)
    for _ in range(6):
        double(torch.ones(1).to("xla"))
    assert len(calls) == 6 and replayed() == 0
    told = capfd.readouterr().err
    assert told.count("cannot be replayed") == 1
    assert "the function changes the length of calls: " in told


def test_a_step_is_a_decorator_too():
    @torch_xla.step(pure=True)
    def double(x):
        return x * 2

    @torch_xla.step()
    def triple(x):
        return x * 3

    x = torch.ones(1).to("xla")
    assert [double(x).item() for _ in range(5)] == [2] * 5
    assert replayed() == 3
    assert triple(x).item() == 3
    with torch_xla.step():
        y = x + 1
    assert y.value.buffer is not None


def test_a_block_cannot_be_pure():
    with pytest.raises(TypeError, match="a `with` block runs in any case"):  # noqa: SIM117
        with torch_xla.compile(pure=True):
            pass


def test_a_method_is_replayed_for_each_of_its_objects():
    class Scaled:
        def __init__(self, factor):
            self.factor = factor

        @torch_xla.compile(pure=True)
        def times(self, x):
            return x * self.factor

    x = torch.ones(1).to("xla")
    objects = [Scaled(3.0), Scaled(5.0)]
    for _ in range(5):
        assert [one.times(x).item() for one in objects] == [3, 5]
    assert replayed() >= 4
    objects[0].factor = 7.0
    assert [one.times(x).item() for one in objects] == [7, 5]


def test_several_ways_of_a_function_are_known_side_by_side():
    model = nn.Linear(3, 2).to("xla")
    x = [torch.ones(n, 3).to("xla") for n in (2, 5)]
    forward = torch_xla.compile(lambda x: model(x), pure=True)
    for _ in range(4):
        for one in x:
            forward(one)
    before = replayed()
    assert [tuple(forward(one).shape) for one in x] == [(2, 2), (5, 2)]
    assert replayed() == before + 2


def test_a_broken_guard_is_told_once_with_what_was_and_what_is(capfd):
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)).to("xla")
    forward = torch_xla.compile(lambda x: model(x), pure=True)
    x = torch.ones(2, 2).to("xla")
    for _ in range(4):
        forward(x)
    for p in (0.25, 0.125):
        model[1].p = p
        for _ in range(3):
            forward(x)
    told = capfd.readouterr().err
    assert told.count("recorded again: ") == 1
    assert "recorded again: model.1.p was 0.5, is 0.25\n" in told
    assert metrics.counter_value("ReplayBroken.value") == 2
    assert replayed() >= 3


def test_a_function_that_cannot_be_replayed_is_told_once_with_its_line(capfd):
    kept = []

    def keeps(x):
        kept.append(x * 2)
        return x + 1

    step = torch_xla.compile(keeps, pure=True)
    for _ in range(5):
        step(torch.ones(2).to("xla"))
    told = capfd.readouterr().err
    assert told.count("cannot be replayed, and is recorded at each call: ") == 1
    assert "a tensor float32[2], computed at " in told and "outlives the call; return it" in told
    assert replayed() == 0 and metrics.counter_value("ReplayRefused.alive") == 5
    assert [one.tolist() for one in kept] == [[2, 2]] * 5


def test_words_are_turned_off_by_a_variable(capfd, monkeypatch):
    monkeypatch.setenv("XDIST_EXPLAIN_RECOMPILES", "0")
    settings.reread()
    try:
        step = torch_xla.compile(lambda x: (x, object()), pure=True)
        for _ in range(5):
            step(torch.ones(2).to("xla"))
        assert "cannot be replayed" not in capfd.readouterr().err
    finally:
        monkeypatch.undo()
        settings.reread()


def test_an_exception_leaves_the_function_as_it_is_without_pure():
    _, model, _, x = small_step()
    fails = [False]

    def failing(x):
        y = model(x).sum()
        if fails[0]:
            raise KeyError("on purpose")
        return y

    failing = torch_xla.compile(failing, pure=True)
    for _ in range(4):
        failing(x)
    fails[0] = True
    with pytest.raises(KeyError, match="on purpose"):
        failing(x)
    fails[0] = False
    before = replayed()
    failing(x)
    assert replayed() == before + 1


def test_threads_have_their_own_variants():
    step, *_ = small_step()
    trained(step)
    results = []

    def other():
        results.append(
            torch_xla.compile(lambda x: x + 1, pure=True)(torch.ones(1).to("xla")).item()
        )
        results.append(step().item())

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert results[0] == 2 and len(results) == 2
    before = replayed()
    step()
    assert replayed() == before + 1


def test_eager_mode_is_deferred_in_replays_too():
    step, *_ = small_step()
    with eager_mode_context(True):
        values = [trained(step, 1).item() for _ in range(6)]
    assert len({*values}) == 6 and replayed() == 3


def test_a_program_that_made_room_is_recorded_again():
    step, *_ = small_step()
    trained(step, 5)
    assert replayed() == 2
    program.PROGRAMS.clear()
    step()
    assert replayed() == 2
    trained(step, 3)
    assert replayed() >= 3


def test_a_function_in_a_recorded_body_is_only_called():
    double = torch_xla.compile(lambda x: x * 2, pure=True)

    def body(carry, x):
        return carry + double(x), x

    total, _ = scan(body, torch.zeros(()).to("xla"), torch.arange(3.0).to("xla"))
    assert total.item() == 6


def test_full_graph_is_kept_at_recorded_calls():
    step = torch_xla.compile(lambda x: x * x.sum().item(), pure=True, full_graph=True)
    with pytest.raises(RuntimeError, match="Unexpected execution happens inside the compiled"):
        step(torch.ones(2).to("xla"))
