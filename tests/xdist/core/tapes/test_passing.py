"""Programs that come once are computed on the host: the same results, and nothing compiled."""

import random

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

import torch_xla
from torch_xdist import metrics, settings, world
from torch_xdist.core.programs import program
from torch_xdist.core.tapes import passing
from torch_xdist.core.trace.plans import PLANS


@pytest.fixture
def asked(monkeypatch):
    """As users have it; what ran before tells nothing."""
    monkeypatch.setenv("XDIST_COMPUTE_ONCE", "1")
    settings.reread()
    torch_xla.sync()
    program.PROGRAMS.clear()
    passing.forget()
    yield
    monkeypatch.undo()
    settings.reread()
    program.PROGRAMS.clear()


@pytest.fixture
def once(asked, monkeypatch):
    """Many programs came, each of them once."""
    monkeypatch.setattr(passing, "_come_once", lambda name: True)


def counts():
    return [metrics.counter_value(name) or 0 for name in ("ComputedOnce", "UncachedCompile")]


class counted:
    """How many programs were computed and compiled within; `of` once it is left."""

    def __enter__(self):
        torch_xla.sync()
        self._before = counts()
        return self

    def __exit__(self, *error):
        self.of = [now - before for now, before in zip(counts(), self._before)]


def device_numbers(*shape, dtype=torch.float32):
    """Numbers that the host does not know."""
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(dtype).to("xla")
    torch_xla.sync()
    return x


def test_a_program_is_computed_after_some_of_the_same_operators_on_other_shapes(asked):
    made = []
    for n in range(1, 7):
        x = device_numbers(n)
        with counted() as counter:
            got = (x.sin() + 1).sum()
            torch.testing.assert_close(got.cpu(), (x.cpu().sin() + 1).sum())
        made.append(counter.of)
    assert made == [[0, 1]] * passing._LEAST_ALIKE + [[1, 0]] * (6 - passing._LEAST_ALIKE)


def test_a_program_is_computed_after_many_of_any_operators(asked):
    x = device_numbers(5)
    made = []
    for n in range(passing._LEAST + 2):
        with counted() as counter:
            y = x
            for _ in range(n + 1):
                y = y.sin()
            y.sum().item()
        made.append(counter.of)
    assert made == [[0, 1]] * passing._LEAST + [[1, 0]] * 2


def test_a_program_is_computed_after_a_few_of_many_rows(asked):
    x = device_numbers(5)
    made = []
    for n in range(6):
        with counted() as counter:
            y = x
            for _ in range(passing._MANY_ROWS // 3 + n):
                y = y.sin()
            y.sum().item()
        made.append(counter.of)
    assert made == [[0, 1]] * passing._LEAST_OF_MANY + [[1, 0]] * 2


@pytest.mark.parametrize("between", [1, passing._FEW + 1])
def test_programs_that_run_a_few_times_before_the_next_one_are_computed(asked, between):
    with counted() as made:
        for n in range(1, 8):
            x = device_numbers(n)
            for _ in range(between):
                (x.sin() + 1).sum().item()
    later = 7 - passing._LEAST_ALIKE
    assert made.of == ([later, passing._LEAST_ALIKE] if between == 1 else [later * 2, 7])


def test_no_program_is_computed_where_programs_of_its_operators_ran_oftener(asked):
    with counted() as made:
        for n in range(1, 8):
            x = device_numbers(n)
            for _ in range(passing._FEW + 2):
                (x.sin() + 1).sum().item()
    assert made.of == [0, 7]


def test_what_comes_in_a_row_is_compiled(once):
    x = device_numbers(7)
    made = []
    for _ in range(passing._TIMES_IN_A_ROW + 2):
        with counted() as counter:
            (x.cos() * 2).sum().item()
        made.append(counter.of)
    assert made == [[1, 0]] * passing._TIMES_IN_A_ROW + [[0, 1], [0, 0]]


def test_what_comes_again_and_again_is_compiled(once):
    some = [device_numbers(7), device_numbers(9)]
    with counted() as made:
        for turn in range(passing._TIMES + 2):
            (some[0].cos() * 2).sum().item()
            if turn < passing._TIMES:
                (some[1].cos() * 2).sum().item()
    assert made.of == [2 * passing._TIMES, 1]


def test_random_numbers_are_those_of_the_compiled_program(once, monkeypatch):
    def drawn():
        torch_xla.manual_seed(3)
        x = torch.randn(5, 3, device="xla")
        masked = F.dropout((x.abs() + 1).sqrt() * 2 - x.sum(), 0.5)
        torch_xla.sync()
        return [y.cpu() for y in (x, masked)]

    with counted() as made:
        got = drawn()
    assert made.of == [1, 2]
    monkeypatch.setenv("XDIST_COMPUTE_ONCE", "0")
    settings.reread()
    wanted = drawn()
    assert torch.equal(got[0], wanted[0]) and torch.equal(got[1] == 0, wanted[1] == 0)
    torch.testing.assert_close(got, wanted)


def test_what_cpu_torch_does_not_compute_runs_as_a_program_of_its_row(once):
    q = device_numbers(1, 2, 5, 8)
    places = torch.tensor([1, 1, 0], device="xla") * 1
    with counted() as made:
        got = F.scaled_dot_product_attention(q.sin(), q * 2, q)
        last = torch.zeros(5, device="xla").scatter(0, places, q[0, 0, 0, :3])
        torch_xla.sync()
    assert made.of == [1, 2]
    there = q.cpu()
    want = F.scaled_dot_product_attention(there.sin(), there * 2, there)
    torch.testing.assert_close(got.cpu(), want)
    assert last.cpu()[0] == there[0, 0, 0, 2] and last.cpu()[1] in there[0, 0, 0, :2]


KINDS = [torch.bfloat16, torch.float16, torch.float64, torch.complex64, torch.int32, torch.bool]


@pytest.mark.parametrize("dtype", KINDS, ids=str)
def test_results_of_each_dtype(once, dtype):
    x = device_numbers(3, 4, dtype=dtype)
    with counted() as made:
        # Views, one that is written, one without elements, one of one element, a conjugate.
        y = x.clone()
        y[1] = x[0]
        got = [y, x.t(), x[:0] + x[:0], x[2, 3] * x[0, 0], x.conj().clone(), torch.empty_like(x)]
        torch_xla.sync()
    assert made.of == [1, 0]
    there = x.cpu()
    want = there.clone()
    want[1] = there[0]
    wanted = [want, there.t(), there[:0], there[2, 3] * there[0, 0], there.conj().clone()]
    torch.testing.assert_close([z.cpu() for z in got[:5]], wanted, equal_nan=True)


def test_results_have_memory_of_their_own(once):
    x = device_numbers(64, 64)
    with counted() as made:
        got = [torch.ops.aten.view_copy(x, [4096]), x.clone(), x.reshape(64, 64).clone()]
        torch_xla.sync()
    assert made.of == [1, 0]
    kept = x.cpu()
    for y in got:
        y.mul_(0)
    torch_xla.sync()
    assert torch.equal(x.cpu(), kept) and not any(y.any() for y in got)


def test_a_wrong_value_goes_the_way_of_the_device(once):
    x, place = device_numbers(4, 3), torch.tensor([9, 1], device="xla") * 1
    torch_xla.sync()
    with counted() as made:
        got = x.index_select(0, place)
        torch_xla.sync()
    assert made.of == [0, 1]
    assert torch.equal(got[1].cpu(), x[1].cpu())


def test_training_is_that_of_the_cpu(once):
    def losses(device):
        torch.manual_seed(0)
        net = torch.nn.Sequential(
            torch.nn.Conv1d(2, 4, 3), torch.nn.BatchNorm1d(4), torch.nn.GELU(), torch.nn.Flatten(1)
        ).to(device)
        optimizer = torch.optim.AdamW(net.parameters(), 0.01)
        found = []
        for n in (9, 12, 7, 9, 11):
            x = torch.randn(3, 2, n, generator=torch.Generator().manual_seed(n)).to(device)
            optimizer.zero_grad()
            loss = net(x).pow(2).mean()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    with counted() as made:
        got = losses("xla")
    torch.testing.assert_close(got, losses("cpu"), rtol=1e-4, atol=1e-5)
    assert made.of[0] >= 4


def test_the_metrics_count_a_run_of_what_was_computed(once):
    def told():
        runs = metrics.metric_data("ExecuteTime")
        return (runs[0] if runs else 0), metrics.counter_value("ExecuteComputation") or 0

    x = device_numbers(6)
    before = told()
    (x.sin() + 1).sum().item()
    assert [now - then for now, then in zip(told(), before)] == [1, 1]


def test_what_the_user_gives_away_goes_to_a_program(once):
    x = device_numbers(6)
    with counted() as made:
        torch_xla._XLAC._set_buffer_donation(x, True)
        x.add_(1)
        torch_xla.sync()
    assert made.of == [0, 1]


def test_a_row_that_only_the_device_computes_is_a_program_as_ever(once):
    with counted() as made:
        torch.rand(11, device="xla").cpu()
    assert made.of == [0, 1]


def test_what_was_computed_leaves_no_plans(once, monkeypatch):
    before = len(PLANS)
    monkeypatch.setattr(PLANS, "_sweep_at", before + 30)
    monkeypatch.setattr(PLANS, "_FIRST_SWEEP", before + 30)
    with counted() as made:
        for n in range(2000, 2100):
            # Each length has two plans of its own.
            (torch.ones(n, device="xla").cos() + 1).sum().item()
    assert made.of == [100, 0]
    assert len(PLANS) < before + 60


class Watching(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def refused(monkeypatch, how):
    """What makes every program be compiled, as a context."""
    if how == "setting":
        monkeypatch.setenv("XDIST_COMPUTE_ONCE", "0")
        settings.reread()
    elif how == "debugging":
        monkeypatch.setenv("PT_XLA_DEBUG_LEVEL", "1")
        settings.reread()
    elif how == "deterministic":
        monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    elif how == "ranks":
        monkeypatch.setattr(world, "world_size", lambda: 2)
    elif how == "mode":
        return Watching()
    elif how == "autocast":
        return torch.autocast("cpu")
    return torch.no_grad()


WAYS = ["setting", "debugging", "deterministic", "ranks", "mode", "autocast"]


@pytest.mark.parametrize("how", WAYS)
def test_every_program_is_compiled_where_somebody_depends_on_it(once, monkeypatch, how):
    x = device_numbers(6)
    with counted() as made, refused(monkeypatch, how):
        y = x.tan() + 1
        torch_xla.sync()
    assert made.of == [0, 1]
    torch.testing.assert_close(y.cpu(), x.cpu().tan() + 1)


def test_a_default_device_changes_nothing_of_what_is_computed(once):
    with counted() as made, torch.device("xla"):
        x = torch.empty(3).fill_(2)
        assert (x + torch.ones(3)).sum().item() == 9
    assert made.of[1] == 0


STEPS = [
    lambda x: x.sin(), lambda x: x[1:] * 2, lambda x: x.flip(0), lambda x: x.t().reshape(x.shape),
    lambda x: x.clone().add_(1), lambda x: torch.where(x > 0, x, -x), lambda x: x.softmax(-1),
    lambda x: torch.cat([x, x])[: len(x)], lambda x: (x @ x.t()) @ x, lambda x: x - x.mean(0),
    lambda x: x.index_fill(0, torch.zeros(1, dtype=torch.int64, device=x.device), 0.5),
]  # fmt: skip


@given(st.lists(st.integers(0, len(STEPS) - 1), min_size=1, max_size=8), st.integers(0, 99))
@examples(max_examples=60)
def test_chains_give_what_cpu_torch_gives(chain, seed):
    start = torch.randn(12, 3, generator=torch.Generator().manual_seed(seed))
    kept = random.Random(seed).randrange(len(chain))
    results = []
    for device in ("xla", "cpu"):
        x = start.to(device) * 1
        torch_xla.sync()
        for place, step in enumerate(chain):
            x = STEPS[step](x)
            if place == kept:
                other = x
        results.append([x.cpu(), other.cpu()])
    torch.testing.assert_close(*results)


@pytest.fixture(autouse=True)
def _of_chains(request):
    """hypothesis takes no fixture of one test."""
    if "chains" in request.node.name:
        request.getfixturevalue("once")
