"""Programs in parts: rows that differ from step to step are compiled anew, and nothing else."""

import copy
import random
import sys

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import torch_xla
import torch_xla.core.xla_model as xm
from torch_xdist import metrics
from torch_xdist.core.devices import device as devices_here
from torch_xdist.core.programs import program
from torch_xdist.core.programs.launch import prepare
from torch_xdist.core.tapes import changing_rows


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    monkeypatch.setattr(changing_rows, "_LEAST_S", 0.0)
    torch_xla.sync()
    program.PROGRAMS.clear()
    yield
    program.PROGRAMS.clear()


def trace():
    return devices_here.trace_of(devices_here.default_index())


def count(name):
    return metrics.counter_value(name) or 0


def model():
    torch.manual_seed(0)
    layers = [[torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.GELU()] for _ in range(4)]
    return torch.nn.Sequential(*[part for layer in layers for part in layer])


class Training:
    """Steps whose loss is of as many rows as it is told, which the device finds."""

    def __init__(self, device):
        self.net = model().to(device)
        self.device = device
        self.optimizer = torch.optim.SGD(self.net.parameters(), 0.1, momentum=0.9)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)

    def step(self, taken, seed=0):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(16, 8, generator=generator).to(self.device)
        rows = torch.arange(16.0).to(self.device) * 1.0 < taken
        self.optimizer.zero_grad()
        out = self.net(x)
        # What the host knows of the mask would make it one program.
        found = out[(out.detach()[:, 0] * 0 < 1) & rows]
        loss = found.square().mean() + out.mean()
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        if self.device == "xla":
            torch_xla.sync()
        return loss.detach().cpu()


def test_another_number_of_rows_compiles_the_rows_that_it_changes():
    ours, host = Training("xla"), Training("cpu")
    compiled, parted = [], []
    for seed, taken in enumerate((5, 6, 7, 8, 9, 7, 5)):
        before = count("UncachedCompile"), count("RanInParts")
        torch.testing.assert_close(ours.step(taken, seed), host.step(taken, seed))
        compiled.append(count("UncachedCompile") - before[0])
        parted.append(count("RanInParts") - before[1])
    # What finds the rows is a program too. The second time it is three parts, then one of them.
    assert compiled == [2, 3, 1, 1, 1, 0, 0] and parted == [0, 1, 1, 1, 1, 1, 0]
    for p, q in zip(ours.net.parameters(), host.net.parameters()):
        torch.testing.assert_close(p.detach().cpu(), q.detach())


def test_what_is_compiled_soon_is_compiled_whole(monkeypatch):
    monkeypatch.setattr(changing_rows, "_LEAST_S", 1e9)
    ours, before = Training("xla"), count("RanInParts")
    for taken in (5, 6, 7, 8):
        ours.step(taken)
    assert count("RanInParts") == before


def test_where_most_rows_differ_there_is_one_program():
    net, before = model().to("xla"), count("RanInParts")
    for size in (5, 6, 7, 8):
        with torch.no_grad():
            assert net(torch.ones(size, 8).to("xla")).isfinite().all().item()
    assert count("RanInParts") == before


def test_parameters_are_written_over_in_parts_too():
    ours = Training("xla")
    for taken in (5, 6):
        ours.step(taken)
    before = count("RanInParts")

    def places():
        tensors = [*ours.net.parameters()]
        tensors += [state["momentum_buffer"] for state in ours.optimizer.state.values()]
        return {tensor.value.buffer.unsafe_buffer_pointer() for tensor in tensors}

    held = places()
    ours.step(8)
    assert count("RanInParts") == before + 1 and places() == held


class InterruptedAt:
    """Ctrl-C before the nth line that runs the parts of a program."""

    def __init__(self, line):
        self.left = line

    def __enter__(self):
        sys.settrace(self.enter)
        return self

    def __exit__(self, *_):
        sys.settrace(None)

    def enter(self, frame, event, arg):
        code = frame.f_code
        is_ours = code.co_filename == changing_rows.__file__ and code.co_name in ("run", "_go_on")
        return self.line if is_ours else None

    def line(self, frame, event, arg):
        self.left -= event == "line"
        if not self.left:
            sys.settrace(None)
            raise KeyboardInterrupt
        return self.line


def test_no_value_is_lost_wherever_it_is_interrupted():
    ours, host = Training("xla"), Training("cpu")
    for taken in (5, 6):
        ours.step(taken), host.step(taken)
    for line in range(1, 200):
        before = count("RanInParts")
        try:
            with InterruptedAt(line) as at:
                ours.step(6)
        except KeyboardInterrupt:
            torch_xla.sync()
        host.step(6)
        for p, q in zip(ours.net.parameters(), host.net.parameters()):
            torch.testing.assert_close(p.detach().cpu(), q.detach(), rtol=1e-4, atol=1e-5)
        assert count("RanInParts") > before
        if at.left > 0:
            break
    assert 20 < line < 199


def test_who_looks_at_a_run_sees_one_program():
    ours, seen = Training("xla"), []
    ours.step(5)
    before = count("RanInParts")
    trace().observer = lambda run, launch: seen.append(run)
    try:
        ours.step(6)
    finally:
        trace().observer = None
    assert seen and count("RanInParts") == before


def launch_of(build):
    """The launch of what `build` records."""
    torch_xla.sync()
    results = build()
    tape = trace().tape
    slots = [trace().slot_of(result.value) for result in results]
    return prepare(tape, trace().device, sorted({*slots}), may_donate=False)


def a_chain():
    """The launch of one row after the other; the slot and the plan of the first and the last."""
    launch = launch_of(lambda: [torch.ones(4, device="xla").sin().cos().exp()])
    rows = changing_rows.rows_of(launch.entries)
    (first,) = [(slot, row[0]) for slot, row in rows if ".sin." in row[0].name]
    (last,) = [(slot, row[0]) for slot, row in rows if ".exp." in row[0].name]
    return launch, first, last


def in_parts(launch, different, monkeypatch):
    monkeypatch.setattr(changing_rows, "_of_its_kind", lambda launch: [("one",)])
    monkeypatch.setattr(changing_rows, "_different", lambda *_: different)
    return changing_rows.in_parts(launch)


def test_an_exchange_that_others_need_is_in_one_program_with_them(monkeypatch):
    monkeypatch.setattr(changing_rows, "_MOST_SHARE", 1)
    launch, (_, exchange), (last, _) = a_chain()
    assert in_parts(launch, {last}, monkeypatch) is not None
    monkeypatch.setattr(exchange, "is_collective", True)
    assert in_parts(launch, {last}, monkeypatch) is None


def test_where_ranks_run_one_program_each_has_it_whole(monkeypatch):
    monkeypatch.setattr(changing_rows, "_MOST_SHARE", 1)
    launch, (first, _), (_, exchange) = a_chain()
    monkeypatch.setattr(changing_rows, "is_on_mesh", lambda peers: True)
    assert in_parts(launch, {first}, monkeypatch) is not None
    monkeypatch.setattr(exchange, "is_collective", True)
    assert in_parts(launch, {first}, monkeypatch) is None


OPERATORS = {
    "sine": lambda x, y: x.sin(),
    "product": lambda x, y: x @ y.t(),
    "halves": lambda x, y: torch.cat(x.chunk(2)[::-1]),
    "largest": lambda x, y: x.topk(4, 1).values + y.topk(4, 1).indices,
    "normal": lambda x, y: F.layer_norm(x, (4,)),
    "dropped": lambda x, y: F.dropout(x, 0.5),
    "noise": lambda x, y: x + torch.rand_like(x),
    "written": lambda x, y: x.clone().index_fill_(0, torch.tensor([1], device=x.device), 2.0),
    "in a view": lambda x, y: (z := x.clone(), z[1].mul_(0.3))[0],
    "number": lambda x, y: x * random.Random(len(str(x.shape))).random() + 3,
    "both": lambda x, y: x + y,
}


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([*OPERATORS]), st.integers(0, 99)), min_size=2, max_size=9),
    st.integers(0, 1 << 20),
)
def test_any_rows_apart_make_what_one_program_makes(chain, chosen):
    def build():
        torch.manual_seed(3)
        xm.set_rng_state(5)
        made = [torch.linspace(0, 1, 16).reshape(4, 4).to("xla") for _ in range(2)]
        for name, place in chain:
            made.append(OPERATORS[name](made[-1], made[place % len(made)]))
        return made[2:]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(changing_rows, "_MOST_SHARE", 1)
        launch = launch_of(build)
        rows = changing_rows.rows_of(launch.entries)
        different = {slot for place, (slot, _) in enumerate(rows) if chosen >> place % 20 & 1}
        parted = in_parts(launch, different, patch)
    assert (parted is None) == (not different)
    _, whole, _ = program.find(launch)
    expected, found = [], []
    program.execute(whole, launch, expected)
    if parted is not None:
        program.execute(parted[0], launch, found)
        for ours, theirs in zip(found[0], expected[0], strict=True):
            torch.testing.assert_close(
                torch.tensor(ours.tolist()), torch.tensor(theirs.tolist()), rtol=1e-5, atol=1e-5
            )
    torch_xla.sync()


def test_a_program_of_others_holds_little():
    ours = Training("xla")
    for taken in (5, 6):
        ours.step(taken)
    (parted,) = [p for p in program.PROGRAMS.values() if p.runs_others]
    assert parted.host_bytes < 100_000 and parted.is_kept
    assert copy.copy(parted).rows == parted.rows
