"""When a trace runs, why, where, and what is compiled again."""

import pytest
import torch

import torch_xla
from torch_xdist import metrics
from torch_xdist.core.devices import steps
from torch_xdist.core.run import cuts
from torch_xdist.errors import FallbackError


def cuts_of(run):
    before = len(cuts.LOG)
    assert before < (cuts.LOG.maxlen or 0)
    run()
    return list(cuts.LOG)[before:]


@pytest.fixture(autouse=True)
def nothing_pending():
    steps.sync()
    cuts.LOG.clear()
    yield
    steps.sync()


def step(model, optimizer, x):
    optimizer.zero_grad()
    loss = model(x).pow(2).mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


def test_a_training_step_is_one_cut_and_the_third_compiles_nothing():
    model = torch.nn.Linear(4, 2).to("xla")
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    x = torch.randn(8, 4).to("xla")

    def train():
        step(model, optimizer, x)
        steps.sync()

    train()
    train()
    log = cuts_of(train)
    assert [c.reason for c in log] == [cuts.SYNC]
    assert not log[0].compiled
    assert log[0].where.split(":")[0] == __file__


def test_a_changing_learning_rate_compiles_nothing_new():
    model = torch.nn.Linear(4, 2).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    x = torch.randn(8, 4).to("xla")
    for _ in range(2):
        step(model, optimizer, x)
        steps.sync()
    for rate in (0.07, 0.03, 0.011):
        optimizer.param_groups[0]["lr"] = rate
        step(model, optimizer, x)
        steps.sync()
    assert [c.compiled for c in list(cuts.LOG)[-3:]] == [False, False, False]


def test_reading_a_value_cuts_once_and_says_where():
    x = torch.ones(3, device="xla") * 2
    log = cuts_of(lambda: x.sum().item())
    assert [c.reason for c in log] == [cuts.READ]
    assert __file__ in log[0].where


def test_a_value_that_is_there_is_read_without_a_cut():
    x = torch.ones(3, device="xla") + 1
    steps.sync()
    assert cuts_of(lambda: x.tolist()) == []


def test_a_value_that_is_there_is_read_without_a_cut_also_after_it_was_an_operand():
    w = torch.ones(3, device="xla") * 3
    steps.sync()
    y = w * 2
    assert cuts_of(w.tolist) == []
    assert y.value.buffer is None
    assert y.tolist() == [6, 6, 6]


def test_a_trace_without_living_results_runs_nothing():
    x = torch.ones(3, device="xla")
    steps.sync()

    def evaluate():
        (x * 2).sum()
        steps.sync()

    assert cuts_of(evaluate) == []


def test_work_is_never_done_twice():
    x = torch.ones(3, device="xla") + 1
    total = x.sum()
    assert total.item() == 6
    log = cuts_of(lambda: x.mul(3).tolist())
    assert len(log) == 1
    assert log[0].rows == 1


def test_dead_results_are_not_kept():
    big = torch.ones(100, device="xla")
    kept = (big * 2).sum()
    del big
    steps.sync()
    assert kept.item() == 200


def test_control_flow_on_a_tensor_is_a_counted_cut():
    x = torch.ones(2, device="xla")
    before = cuts.REASONS[cuts.READ]
    assert (x.sum() > 1) and not (x.sum() > 5)
    assert cuts.REASONS[cuts.READ] == before + 2


def test_a_program_that_is_known_counts_as_cached():
    for _ in range(2):
        torch.ones(7, device="xla").mul(5).tolist()
    assert metrics.counter_value("CachedCompile")


@pytest.mark.on_cpu
def test_a_fallback_is_counted_by_its_name():
    before = metrics.counter_value("aten::nonzero") or 0
    found = torch.tensor([0.0, 1.0, 2.0]).to("xla").nonzero()
    assert found.tolist() == [[1], [2]]
    assert metrics.counter_value("aten::nonzero") == before + 1


@pytest.mark.on_cpu
def test_fallbacks_can_be_made_errors_that_name_the_line(monkeypatch):
    from torch_xdist import settings

    monkeypatch.setenv("XDIST_FALLBACK", "error")
    settings.reread()
    try:
        with pytest.raises(FallbackError, match=r"test_cuts.py:\d+: aten.nonzero.default has no"):
            torch.ones(2, device="xla").nonzero()
    finally:
        monkeypatch.undo()
        settings.reread()


@pytest.mark.on_cpu
def test_a_fallback_says_once_per_line_what_it_cost(caplog):
    x = torch.tensor([0.0, 1.0, 2.0]).to("xla") * 1.0
    with caplog.at_level("INFO", "torch_xdist.core.record.fallback"):
        for limit in (-1, 0, 1):
            assert x[x > limit].tolist() == [v for v in (0, 1, 2) if v > limit]
        x.nonzero()
    assert [r.getMessage().split(": ")[1] for r in caplog.records] == [
        "aten.index.Tensor ran on the CPU", "aten.nonzero.default ran on the CPU",
    ]  # fmt: skip
    assert all(__file__ in r.getMessage() for r in caplog.records)
    assert caplog.records[0].getMessage().endswith(" ms and one cut")


def test_parameters_are_donated_so_that_one_copy_lives():
    weight = torch.ones(1000, device="xla")
    steps.sync()
    place = weight.value.buffer.unsafe_buffer_pointer()
    weight.add_(1)
    steps.sync()
    assert weight.value.buffer.unsafe_buffer_pointer() == place
    assert weight.sum().item() == 2000


def test_a_buffer_somebody_else_holds_is_not_donated():
    weight = torch.ones(10, device="xla")
    other = weight.clone()
    steps.sync()
    weight.add_(1)
    steps.sync()
    assert other.tolist() == [1.0] * 10


def test_wait_device_ops_returns_when_everything_ran():
    x = torch.ones(3, device="xla") + 1
    steps.wait_device_ops()
    assert x.value.buffer is not None


def test_ten_thousand_operators_without_a_sync_still_run():
    x = torch.zeros(1, device="xla")
    for _ in range(2000):
        x = x + 1
    assert x.item() == 2000


def test_a_trace_that_grows_too_long_is_cut(monkeypatch):
    trace = torch.ones(1, device="xla").value.trace
    monkeypatch.setattr(trace, "most", 50)
    monkeypatch.setattr(trace, "limit", 50)
    x, y = torch.zeros(2, device="xla"), torch.zeros(2, device="xla")

    def grow():
        nonlocal y
        for _ in range(60):
            x.add_(1)
            y = y + x

    log = cuts_of(grow)
    assert [c.reason for c in log] == [cuts.LIMIT, cuts.LIMIT]
    assert x.tolist() == [60, 60] and y.tolist() == [1830, 1830]


def many_lists(x):
    return torch.cat([x, x])[:2]


def many_dropouts(x):
    return torch.nn.functional.dropout(x, 0.0001)


def many_foreach(x):
    return torch._foreach_add([x], [1.0])[0]


def many_copies(x):
    return torch.zeros_like(x).copy_(x)


def many_outs(x):
    return torch.add(x, 1, out=torch.empty(2, device="xla"))


def many_views(x):
    return x.view(1, 2)[0]


@pytest.mark.parametrize(
    "call", [many_lists, many_dropouts, many_foreach, many_copies, many_outs, many_views]
)
def test_the_limit_of_a_trace_holds_on_every_path(monkeypatch, call):
    trace = torch.ones(1, device="xla").value.trace
    monkeypatch.setattr(trace, "most", 50)
    monkeypatch.setattr(trace, "limit", 50)
    x = torch.zeros(2, device="xla") + 1

    def grow():
        nonlocal x
        for _ in range(60):
            x = call(x) * 1

    log = cuts_of(grow)
    assert log and {cut.reason for cut in log} == {cuts.LIMIT}
    assert max(cut.rows for cut in log) <= 55


def train_some(model, steps_):
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    before = len(cuts.LOG)
    for _ in range(steps_):
        optimizer.zero_grad()
        model(torch.ones(2, 3, device="xla")).square().sum().backward()
        optimizer.step()
        steps.sync()
    return [cut.compiled for cut in list(cuts.LOG)[before:]]


def test_a_model_that_was_made_on_the_device_compiles_nothing_in_its_third_step():
    with torch.device("xla"):
        model = torch.nn.Linear(3, 4)
    assert not any(train_some(model, 5)[2:])


@pytest.mark.on_cpu
def test_another_precision_of_matrix_products_makes_another_program(caplog):
    model = torch.nn.Linear(3, 4).to("xla")
    train_some(model, 3)
    before = torch_xla.backends.get_mat_mul_precision()
    try:
        torch_xla.backends.set_mat_mul_precision("highest")
        assert caplog.messages == [torch_xla.backends._WARNING_MESSAGE]
        assert any(train_some(model, 3))
    finally:
        torch_xla.backends.set_mat_mul_precision(before)
