"""Reads of what follows from what came from the host: they have torch's values and cut nothing."""

import itertools
import threading

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import torch_xla
from torch_xdist import metrics
from torch_xdist.core.devices import host_rows, uploaded
from torch_xdist.core.jax_side.from_jax import from_jax
from torch_xdist.core.run import analysis, loop_cuts
from torch_xdist.core.run.device_trace import HERE
from torch_xdist.core.tapes import torch_rows
from torch_xdist.dtypes import to_jax

MASK = torch.tensor([[1] * 8, [1] * 5 + [0] * 3])
READS = {
    "all": lambda m: bool(m.bool().all()),
    "sum": lambda m: bool(m.bool().sum() == m.numel()),
    "part": lambda m: bool((~m.bool()[:, :5]).sum() == 10),
    "in": lambda m: 0 in m[:, [-1, 0]],
    "ones": lambda m: bool(torch.ones(2, 8, device=m.device).all()),
    "range": lambda m: bool(m[:, torch.arange(4, device=m.device) + 2].all()),
    "running sum": lambda m: int(m.cumsum(-1).max()),
    "element": lambda m: int((m + 1)[1, 7]),
    "choice": lambda m: int(torch.where(m == 1, 3, 0).sum()),
    "fill": lambda m: int(m.masked_fill(m == 0, -100).min()),
    "padding": lambda m: int(F.pad(m, (0, 2), value=7).sum()),
    "several results": lambda m: int(m.max(1)[1].max()),
    "floats that are copied": lambda m: float(m.float()[1, 0]),
}


@pytest.fixture(autouse=True)
def no_answers():
    host_rows._answers.clear()


def shifted(tokens):
    """As sequence-to-sequence models do with labels: views are written to."""
    found = tokens.clone()
    found[:, 1:] = tokens[:, :-1].clone()
    found[:, 0] = 2
    return int((found * torch.arange(16, device=found.device).reshape(2, 8)).sum())


def cuts():
    return [metrics.counter_value(name) or 0 for name in ("Cut.read", "Cut.fallback")]


@pytest.mark.parametrize("name", [*READS, "written views"])
def test_a_read_has_torchs_value_and_cuts_nothing(name):
    read = READS.get(name, shifted)
    mask = MASK.to("xla")
    other = torch.randn(3, device="xla") * 2
    before, rows = cuts(), len(HERE.trace.tape.entries)
    assert read(mask) == read(MASK)
    assert cuts() == before
    assert len(HERE.trace.tape.entries) >= rows
    torch_xla.sync()
    assert torch.isfinite(other.cpu()).all()


TIMES = torch.tensor([0.0, 0.25, 0.5, 0.5, 1.0, torch.nan])
OF_TIMES = {
    "order": lambda t: bool((t[1:3] > t[:2]).all()),
    "equal": lambda t: [bool(t[i] == t[i + 1]) for i in range(5)],
    "later": lambda t: next(i for i, one in enumerate(t) if one >= t[2]),
    "least": lambda t: float(torch.where(t > 0.1, t, 9.0)[:5].amin()),
    "missing": lambda t: int(t.isnan().sum()),
    "turned": lambda t: float(t.flip(0)[1]),
    "half": lambda t: bool((t.half() == t.half()[2]).any()),
}


@pytest.mark.parametrize("name", OF_TIMES)
def test_few_times_are_known_as_long_as_nothing_rounds(name):
    times, other = TIMES.to("xla"), torch.randn(3, device="xla") * 2
    before = cuts()
    assert OF_TIMES[name](times) == OF_TIMES[name](TIMES)
    assert cuts() == before
    assert torch.isfinite(other.cpu()).all()


def test_a_loop_over_times_is_one_program():
    def solved(device):
        torch.manual_seed(0)
        field = torch.nn.Linear(2, 2).to(device)
        optimizer = torch.optim.SGD(field.parameters(), 0.1)
        programs = []
        for _ in range(3):
            before = metrics.counter_value("UncachedCompile") or 0
            times, y, found = torch.linspace(0, 1, 5).to(device), torch.ones(3, 2).to(device), []
            for start, end in itertools.pairwise(times):
                y = y + (end - start) * field(y).tanh()
                if end >= times[2]:
                    found.append(y)
            optimizer.zero_grad()
            torch.stack(found).square().mean().backward()
            optimizer.step()
            torch_xla.sync()
            programs.append((metrics.counter_value("UncachedCompile") or 0) - before)
        return field.weight.detach().cpu(), programs

    wanted, _ = solved("cpu")
    before = cuts()
    found, programs = solved("xla")
    assert programs == [1, 0, 0] and cuts() == before
    torch.testing.assert_close(found, wanted)


def test_such_reads_are_counted():
    before = metrics.counter_value("ReadOnHost") or 0
    assert (MASK.to("xla") == 1).any().item()
    assert metrics.counter_value("ReadOnHost") == before + 1


def test_a_step_that_asks_its_mask_is_one_program():
    weight = torch.randn(8, 8, device="xla", requires_grad=True)
    torch_xla.sync()
    compiled = metrics.counter_value("UncachedCompile") or 0
    for _ in range(3):
        mask = MASK.to("xla")
        scores = torch.ones(2, 8, device="xla") @ weight
        if not mask.bool().all():
            scores = scores.masked_fill(mask == 0, 0.0)
        weight.grad = None
        scores.sum().backward()
        torch_xla.sync()
    assert metrics.counter_value("UncachedCompile") == compiled + 1
    assert torch.equal(weight.grad.cpu(), torch.tensor([2.0] * 5 + [1.0] * 3).expand(8, 8))


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(4, device="xla").sum(),
        lambda: MASK.to("xla").float().mean(),
        lambda: torch.randint(5, (4,), device="xla").sum(),
        lambda: MASK.to("xla") // 0,
        lambda: torch.zeros(host_rows._MOST_ELEMENTS + 1, dtype=torch.int64, device="xla").sum(),
        lambda: torch.ones(4, device="xla") + 1,
        lambda: (TIMES.to("xla")[:5] + 0.1).amax(),
        lambda: torch.zeros(uploaded._MOST_FLOATS + 1).to("xla").amax(),
        lambda: MASK.to("xla").topk(3).indices,
        lambda: MASK.to("xla").scatter(1, torch.tensor([[0, 0]]).to("xla"), MASK.to("xla")),
    ],
    ids="random rounded integers division large floats sums many ties writes".split(),
)
def test_all_else_is_asked_of_the_device(make):
    value = make()
    before = cuts()
    assert host_rows.computed(value.value) is None
    value.cpu()
    assert cuts() == [before[0] + 1, before[1]]


def test_more_than_one_number_is_asked_of_the_device():
    mask = MASK.to("xla")
    before = cuts()
    assert (mask + 0).tolist() == MASK.tolist()
    assert (mask + 0).sum().cpu() == 13
    assert cuts() == [before[0] + 2, before[1]]


def test_a_line_that_gets_many_answers_cuts_from_then_on():
    before = cuts()
    given = []
    for number in range(12):
        pending = MASK.to("xla").sin()
        given.append(int(MASK.to("xla").sum() + number % 5))
        del pending
    assert given == [13 + number % 5 for number in range(12)]
    # The fifth answer, and all after it.
    assert cuts() == [before[0] + 8, before[1]]
    assert int(MASK.to("xla").sum()) == 13
    assert cuts() == [before[0] + 8, before[1]]


def test_a_line_has_an_end_of_what_is_remembered_of_it(monkeypatch):
    monkeypatch.setattr(host_rows, "_LINES", 2)
    x = MASK.to("xla")
    lines = [
        lambda: int(x.sum()),
        lambda: int(x.max()),
        lambda: int(x.min()),
        lambda: int((x + 1).max()),
    ]
    assert [line() for line in lines] == [13, 1, 0, 2]
    assert len(host_rows._answers) <= 2


def test_halves_that_are_constants_are_known():
    ones = torch.ones(3, dtype=torch.bfloat16, device="xla")
    assert host_rows.computed(ones.value).tolist() == [1.0] * 3


def test_what_the_device_stores_narrower_is_the_devices(monkeypatch):
    assert host_rows.computed(torch.ones(4, device="xla").value).tolist() == [1.0] * 4
    monkeypatch.setattr(torch_rows, "to_jax", lambda dtype: to_jax(torch.bfloat16))
    assert host_rows.computed(torch.ones(4, device="xla").value) is None


def test_an_operator_that_is_not_torchs_is_the_devices():
    doubled = from_jax(lambda x: x * 2)(MASK.to("xla"))
    assert host_rows.computed(doubled.value) is None
    assert doubled.tolist() == (MASK * 2).tolist()


def test_long_chains_are_the_devices():
    x = MASK.to("xla")
    pending = x.sin()
    for _ in range(host_rows._MOST_ROWS):
        x = x + 1
    assert host_rows.computed(x.value).tolist() == (MASK + host_rows._MOST_ROWS).tolist()
    assert host_rows.computed((x + 1).value) is None
    del pending


def test_what_the_device_computed_before_is_not_known():
    x = MASK.to("xla") + 1
    torch_xla.sync()
    assert host_rows.computed((x + 1).value) is None
    assert (x + 1).tolist() == (MASK + 2).tolist()


def test_the_hosts_tensor_may_change_after_it_was_moved():
    on_host = MASK.clone()
    moved = on_host.to("xla") + 0
    on_host.zero_()
    assert moved.sum().item() == 13


def test_another_threads_pending_value_is_computed_there():
    found = []
    x = MASK.to("xla") + 1
    thread = threading.Thread(target=lambda: found.append(host_rows.computed(x.value)))
    thread.start()
    thread.join()
    assert found == [None]


def test_a_pure_function_is_still_told_that_it_reads():
    weight = torch.ones(8, 8, device="xla")

    def step(mask):
        return weight * (2 if mask.bool().all() else 3)

    pure = torch_xla.compile(step, pure=True)
    # So often that a step that read nothing would be replayed by then.
    masks = [torch.ones_like(MASK)] * 6 + [MASK, torch.ones_like(MASK), MASK]
    results = [pure(mask.to("xla")).cpu()[0, 0].item() for mask in masks]
    assert results == [2.0] * 6 + [3.0, 2.0, 3.0]


def test_a_graph_stays_whole_where_it_asks_its_mask():
    step = torch_xla.compile(lambda mask: bool((mask + 0).all()), full_graph=True)
    assert step(torch.ones_like(MASK).to("xla"))
    assert not step(MASK.to("xla"))


def test_where_programs_may_not_run_a_read_is_refused():
    mask = MASK.to("xla")
    before = analysis.set_allow_execution(False)
    try:
        with pytest.raises(RuntimeError, match="Unexpected execution"):
            (mask + 0).all().item()
    finally:
        analysis.set_allow_execution(before)


def test_what_the_host_knows_all_of_is_in_no_program():
    torch_xla.sync()
    weight, mask = torch.ones(16).to("xla"), MASK.to("xla")
    weight.mul_(1.5)
    torch_xla.sync()
    programs, before = metrics.counter_value("UncachedCompile") or 0, cuts()
    for step in range(3):
        if step:
            twice = mask * 2
            assert int(mask.sum()) == 13 and int(twice.sum()) == 26
            assert uploaded.known(twice.value) and twice.tolist() == (MASK * 2).tolist()
        weight.mul_(2.5)
        torch_xla.sync()
    assert metrics.counter_value("UncachedCompile") == programs
    assert cuts()[0] == before[0]


STEPS = {
    "add": lambda x, y: x + y,
    "product": lambda x, y: x * y,
    "difference": lambda x, y: x - 2 * y,
    "compare": lambda x, y: (x > y).long(),
    "flip": lambda x, y: x.flip(0),
    "roll": lambda x, y: x.roll(1, 1),
    "cumsum": lambda x, y: x.cumsum(0),
    "least": lambda x, y: torch.minimum(x, y),
    "shift": lambda x, y: (x & 15) << 2,
    "remainder": lambda x, y: x % 7,
    "transpose": lambda x, y: x.reshape(4, 3).t().contiguous().reshape(3, 4),
    "write": lambda x, y: x.index_fill(1, torch.tensor([1], device=x.device), 5),
    "narrow": lambda x, y: x.to(torch.int32).long(),
    "sort": lambda x, y: x.sort(1).values + x.sort(1).indices,
    "one number": lambda x, y: x.index_put((y % 3,), torch.tensor(7, device=x.device)),
}


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from([*STEPS]), min_size=1, max_size=6), st.integers(0, 1000))
def test_any_chain_of_whole_numbers_is_what_the_device_computes(names, seed):
    host_rows._answers.clear()
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randint(-50, 50, (2, 3, 4), generator=generator).to("xla").unbind(0)
    # What the same line puts on the device again would begin a round, which runs what is pending.
    with loop_cuts.held():
        for name in names:
            x = STEPS[name](x, y)
    on_host = host_rows.computed(x.value)
    assert on_host is not None
    torch_xla.sync()
    assert torch.equal(x.cpu(), on_host)
