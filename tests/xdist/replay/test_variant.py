"""What replays read, write, make and return: each kind of tensor that a step may have."""

from collections import namedtuple

import pytest
import torch
from torch import nn

import torch_xla
from torch_xdist import metrics
from torch_xdist.core.programs import program
from torch_xla.amp import GradScaler, syncfree

pytestmark = pytest.mark.usefixtures("counted_from_zero")

Pair = namedtuple("Pair", "left right")


def replayed() -> int:
    return metrics.counter_value("ReplayedStep") or 0


def on_device(*numbers: float) -> torch.Tensor:
    return torch.tensor([*numbers]).to("xla")


def test_arguments_are_found_in_any_nest():
    step = torch_xla.compile(
        lambda pair, more, *, scale: pair.left * more["x"][0] + pair.right * scale, pure=True
    )
    for n in range(6):
        result = step(
            Pair(on_device(n), on_device(2.0)), {"x": [on_device(3.0)]}, scale=on_device(n)
        )
        assert result.tolist() == [5 * n]
    assert replayed() == 4


def test_results_come_in_the_nest_that_the_function_returns():
    def step(x):
        return {"both": Pair(x + 1, [x * 2, None]), "text": "done", "number": 3}

    step = torch_xla.compile(step, pure=True)
    for n in range(5):
        result = step(on_device(n))
        assert result["both"].left.tolist() == [n + 1] and result["both"].right[0].tolist() == [
            2 * n
        ]
        assert result["both"].right[1] is None
        assert (result["text"], result["number"]) == ("done", 3)
    assert replayed() == 3


def test_results_of_several_replays_stay_what_they_are():
    step = torch_xla.compile(lambda x: x + 1, pure=True)
    results = [step(on_device(n)) for n in range(8)]
    assert [r.item() for r in results] == [*range(1, 9)]


def test_what_is_returned_may_be_an_argument_or_a_variable():
    kept = on_device(1.0)

    def step(x):
        kept.add_(x)
        return x, kept, kept[0], x.detach()

    step = torch_xla.compile(step, pure=True)
    for n in range(6):
        x = on_device(n)
        same, variable, view, other = step(x)
        assert same is x and variable is kept and other.tolist() == [n]
    view.add_(100)
    assert kept.item() == 1 + sum(range(6)) + 100
    assert replayed() == 4


def test_views_that_are_returned_share_memory():
    def step(x):
        y = x * 2
        return y, y[1:]

    step = torch_xla.compile(step, pure=True)
    for _ in range(5):
        whole, part = step(on_device(1.0, 2.0))
        part.add_(1)
        assert whole.tolist() == [2, 5]
    assert replayed() == 3


def test_arguments_are_written_in_place():
    step = torch_xla.compile(lambda cache, row: cache[1:].add_(row).sum(), pure=True)
    cache = on_device(0.0, 0.0, 0.0)
    for n in range(6):
        version = cache._version
        assert step(cache, on_device(1.0)).item() == 2 * (n + 1)
        assert cache._version > version
    assert cache.tolist() == [0, 6, 6] and replayed() == 4


def test_arguments_may_be_views():
    step = torch_xla.compile(lambda x: x * 2, pure=True)
    for n in range(5):
        whole = on_device(n, n + 1.0, n + 2.0)
        assert step(whole[1:]).tolist() == [2 * n + 2, 2 * n + 4]
    assert replayed() == 3


def test_one_tensor_may_be_two_arguments():
    step = torch_xla.compile(lambda x, y: x.add_(1) + y, pure=True)
    for _ in range(5):
        x = on_device(1.0)
        assert step(x, x).tolist() == [4]
    before = replayed()
    assert before == 3
    x, y = on_device(1.0), on_device(5.0)
    assert step(x, y).tolist() == [7]
    assert replayed() == before


def test_constants_that_a_function_puts_on_the_device_are_put_there_again():
    def step(x):
        return x * torch.tensor([2.0, 3.0], device="cpu").to("xla") + 1.5

    step = torch_xla.compile(step, pure=True)
    for n in range(5):
        assert step(on_device(n, n)).tolist() == [2 * n + 1.5, 3 * n + 1.5]
    assert replayed() == 3


def test_random_numbers_go_on_as_without_pure():
    def step(x):
        return nn.functional.dropout(x, 0.5) + torch.rand(8, device="xla")

    found = []
    for pure in (False, True):
        torch_xla.manual_seed(4)
        compiled = torch_xla.compile(step, pure=pure)
        found.append([compiled(torch.ones(8).to("xla")).tolist() for _ in range(6)])
        found[-1].append(torch.rand(3, device="xla").tolist())
    assert found[0] == found[1] and replayed() == 4


def accumulating(pure: bool):
    torch.manual_seed(0)
    model = nn.Linear(2, 1).to("xla")
    x = torch.ones(3, 2).to("xla")
    step = torch_xla.compile(lambda x: model(x).square().sum().backward(), pure=pure)
    for _ in range(6):
        step(x)
    return [p.grad.tolist() for p in model.parameters()]


def test_gradients_are_accumulated():
    assert accumulating(False) == accumulating(True)
    assert replayed() == 3


def stepping(pure: bool):
    """A step that is the optimizer's alone; what it leaves, and a gradient that was kept."""
    torch.manual_seed(0)
    model = nn.Linear(2, 1).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    x = torch.ones(3, 2).to("xla")

    def step():
        optimizer.step()
        optimizer.zero_grad()

    step = torch_xla.compile(step, pure=pure)
    for turn in range(8):
        model(x).square().sum().backward()
        kept = model.weight.grad if turn >= 6 else None
        step()
        assert model.weight.grad is None
    return kept.tolist(), [p.tolist() for p in model.parameters()]


def test_gradients_from_outside_are_used_and_dropped():
    assert stepping(False) == stepping(True)
    assert replayed() == 3


def scheduled(pure: bool):
    """The parameters after steps at other rates, momenta and decays each."""
    torch.manual_seed(0)
    model = nn.Linear(2, 1).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=0.1)
    group = optimizer.param_groups[0]
    x = torch.ones(3, 2).to("xla")

    def step():
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()

    step = torch_xla.compile(step, pure=pure)
    for turn in range(1, 9):
        group.update(lr=0.1 / turn, momentum=0.9 - 0.05 * turn, weight_decay=0.1 * turn)
        step()
    return [p.tolist() for p in model.parameters()]


def test_numbers_of_sgd_that_a_schedule_writes_are_inputs():
    assert scheduled(False) == scheduled(True)
    assert replayed() == 5


def test_a_momentum_that_becomes_zero_is_recorded_again():
    model = nn.Linear(2, 1).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

    @torch_xla.compile(pure=True)
    def step(x):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    for _ in range(5):
        step(torch.ones(3, 2).to("xla"))
    assert replayed() == 2
    optimizer.param_groups[0]["momentum"] = 0.0
    before = model.weight.detach().clone()
    step(torch.ones(3, 2).to("xla"))
    assert replayed() == 2
    torch.testing.assert_close(before - model.weight.detach(), torch.full((1, 2), 0.3).to("xla"))


def test_a_gradient_that_was_saved_keeps_its_values():
    torch.manual_seed(0)
    model = nn.Linear(2, 1).to("xla")

    def step(x):
        model.zero_grad()
        model(x).sum().backward()
        return x.sum()

    step = torch_xla.compile(step, pure=True)
    saved = []
    for n in range(7):
        step(torch.full((1, 2), float(n)).to("xla"))
        saved.append(model.weight.grad)
        assert model.weight.grad.tolist() == [[n, n]]
    assert [one.tolist() for one in saved] == [[[n, n]] for n in range(7)]
    assert replayed() == 4


def test_a_graph_of_before_notices_that_a_parameter_was_written():
    torch.manual_seed(0)
    model = nn.Linear(2, 2).to("xla")
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)
    x = torch.ones(1, 2).to("xla")

    def step():
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    step = torch_xla.compile(step, pure=True)
    for _ in range(4):
        step()
    graph = model(model(x)).sum()
    step()
    assert replayed() == 2
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        graph.backward()


def test_memory_that_somebody_else_holds_is_not_overwritten():
    torch.manual_seed(0)
    total = torch.zeros(2).to("xla")
    step = torch_xla.compile(lambda x: total.add_(x).sum(), pure=True)
    for _ in range(4):
        step(on_device(1.0, 1.0))
    before = replayed()
    copy = torch.zeros(2).to("xla")
    copy.copy_(total)
    step(on_device(1.0, 1.0))
    assert copy.tolist() == [4, 4] and total.tolist() == [5, 5]
    assert replayed() == before
    assert metrics.counter_value("ReplayBroken.buffers") == 1


def normalizing(pure: bool):
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(2).to("xla")
    step = torch_xla.compile(lambda x: norm(x), pure=pure)
    values = []
    for turn in range(12):
        norm.train(turn % 6 < 3)
        values.append(step(torch.arange(6.0).reshape(3, 2).to("xla") * turn).tolist())
    return values, norm.running_mean.tolist(), norm.num_batches_tracked.item()


def test_running_statistics_and_modes_are_those_of_the_module():
    assert normalizing(False) == normalizing(True)
    assert replayed() > 4


def scaling(pure: bool):
    """Mixed precision with a scaler, of which the seventh step overflows."""
    torch.manual_seed(0)
    model = nn.Linear(2, 1).to("xla")
    optimizer = syncfree.AdamW(model.parameters(), 0.1)
    scaler = GradScaler(growth_interval=3)

    def step(x):
        optimizer.zero_grad()
        with torch.autocast("xla", torch.bfloat16):
            loss = model(x).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    step = torch_xla.compile(step, pure=pure)
    losses = []
    for turn in range(9):
        x = torch.ones(2, 2) * (1e30 if turn == 6 else 1)
        losses.append(step(x.to("xla")).tolist())
    return losses, scaler.get_scale(), [p.tolist() for p in model.parameters()]


def test_scalers_and_syncfree_optimizers_are_replayed():
    assert scaling(False) == scaling(True)
    assert replayed() >= 4


def test_a_failed_run_leaves_numbers_and_parameters_as_they_were(monkeypatch):
    torch.manual_seed(0)
    model = nn.Linear(2, 1).to("xla")
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)
    x = torch.ones(3, 2).to("xla")

    def step():
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        return torch.rand(1, device="xla")

    step = torch_xla.compile(step, pure=True)
    for _ in range(5):
        step()
    before = [p.tolist() for p in model.parameters()]
    counts = [s["step"].item() for s in optimizer.state.values()]

    def fails(*_):
        raise RuntimeError("no memory")

    monkeypatch.setattr(program, "run", fails)
    with pytest.raises(RuntimeError, match="no memory"):
        step()
    monkeypatch.undo()
    assert [p.tolist() for p in model.parameters()] == before
    assert [s["step"].item() for s in optimizer.state.values()] == counts
    step()
    assert [s["step"].item() for s in optimizer.state.values()] == [c + 1 for c in counts]


def test_a_run_that_fails_after_it_took_its_operands_says_what_is_lost(monkeypatch):
    total = torch.zeros(2).to("xla")
    step = torch_xla.compile(lambda x: total.add_(x).sum(), pure=True)
    x = on_device(1.0, 1.0)
    for _ in range(4):
        step(x)

    def fails(compiled, arguments, *_):
        for buffer in arguments[0]:
            buffer.delete()
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(program, "run", fails)
    with pytest.raises(RuntimeError, match=r"operands were used up: parameters and states that"):
        step(x)
