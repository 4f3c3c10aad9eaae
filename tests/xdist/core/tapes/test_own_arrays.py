"""Tensors that share an array since a copy, and the programs that write one of them."""

import threading

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import torch_xla
from torch_xdist import metrics
from torch_xdist.core.devices import steps
from torch_xdist.core.programs import program


@pytest.fixture
def compiled():
    """A function that tells how many programs were compiled since the last time."""
    steps.sync()
    program.PROGRAMS.clear()
    last = 0

    def since():
        nonlocal last
        now = metrics.counter_value("UncachedCompile") or 0
        found, last = now - last, now
        return found

    since()
    return since


@pytest.fixture
def copies():
    """A function that tells how many shared arrays were copied since the test began."""
    before = metrics.counter_value("CopiedSharedArray") or 0
    return lambda: (metrics.counter_value("CopiedSharedArray") or 0) - before


def net():
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 3))


def train(model, optimizer, batch):
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()


def both(run):
    """The same script on the CPU and on the device; returns what it returns there."""
    wanted, found = (run(torch.device(name)) for name in ("cpu", "xla"))
    for one, other in zip(wanted, found, strict=True):
        torch.testing.assert_close(other.cpu(), one)
    return found


def test_a_mean_of_weights_that_starts_as_a_copy_compiles_its_step_once(compiled, copies):
    def run(device):
        torch.manual_seed(0)
        model = net().to(device)
        mean = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        optimizer = torch.optim.AdamW(model.parameters(), 0.1)
        counts.clear()
        for _ in range(5):
            train(model, optimizer, torch.ones(2, 3).to(device))
            mean.update_parameters(model)
            torch_xla.sync()
            counts.append(compiled())
        return [*model.state_dict().values(), *mean.state_dict().values()]

    counts = []
    both(run)
    # The first step copies, the others average.
    assert counts == [1, 1, 0, 0, 0]
    # Model and mean were written both, so one of them took what they had.
    assert copies() == 4


@pytest.mark.parametrize("every", [6, 3])
def test_a_hard_update_of_a_target_network_compiles_nothing_where_it_is_seldom(compiled, every):
    def run(device):
        torch.manual_seed(0)
        model, target = net().to(device), net().to(device)
        target.load_state_dict(model.state_dict())
        optimizer = torch.optim.AdamW(model.parameters(), 0.1)
        counts.clear()
        for step in range(1, 14):
            batch = torch.full((2, 3), step / 8).to(device)
            with torch.no_grad():
                wanted = target(batch)
            optimizer.zero_grad()
            (model(batch) - wanted - 1).square().mean().backward()
            optimizer.step()
            if step % every == 0:
                target.load_state_dict(model.state_dict())
            torch_xla.sync()
            counts.append(compiled())
        return [*model.state_dict().values(), *target.state_dict().values()]

    counts = []
    both(run)
    assert counts[0] == 1
    # One step in three is worth programs of its own: that with the update, and the one after it.
    assert counts[1:] == ([0] * 12 if every == 6 else [0, 0, 0, 0, 1, 1] + [0] * 6)


def test_arrays_that_are_shared_in_each_step_are_not_copied_in_each(copies):
    weight, last = torch.ones(4, device="xla"), torch.zeros(4, device="xla")
    steps.sync()
    counts = []
    for _ in range(6):
        last.copy_(weight)
        weight.mul_(2)
        torch_xla.sync()
        counts.append(copies())
    assert weight.tolist() == [64.0] * 4
    assert last.tolist() == [32.0] * 4
    assert counts[-1] == counts[2] <= 2


def test_what_is_only_read_is_not_copied(copies):
    kept, other = torch.ones(4, device="xla"), torch.zeros(4, device="xla")
    steps.sync()
    other.copy_(kept)
    made = kept * 3
    written = torch.zeros(2, device="xla").add_(1)
    torch_xla.sync()
    assert kept.tolist() == other.tolist() == [1.0] * 4
    assert made.tolist() == [3.0] * 4 and written.tolist() == [1.0] * 2
    assert copies() == 0


def test_what_the_user_has_as_an_array_stays_as_it_is():
    weight, other = torch.ones(4).to("xla"), torch.zeros(4).to("xla")
    other.copy_(weight)
    array = weight.value.buffer
    weight.mul_(2)
    torch_xla.sync()
    assert weight.tolist() == [2.0] * 4 and other.tolist() == [1.0] * 4
    assert array.tolist() == [1.0] * 4


def test_two_that_were_one_are_both_written(copies):
    one, other = torch.ones(4).to("xla"), torch.zeros(4).to("xla")
    other.copy_(one)
    one.mul_(2)
    other.add_(1)
    torch_xla.sync()
    assert one.tolist() == other.tolist() == [2.0] * 4
    assert copies() == 1


def test_a_value_that_is_read_between_is_computed_without_copies(copies):
    weight, other = torch.ones(4).to("xla"), torch.zeros(4).to("xla")
    other.copy_(weight)
    weight.mul_(2)
    total, found = weight.sum(), []
    # Another thread's read leaves the tape as it is, which needs the shared array itself.
    reader = threading.Thread(target=lambda: found.append(total.item()))
    reader.start()
    reader.join()
    assert found == [8.0] and copies() == 0
    torch_xla.sync()
    assert weight.tolist() == [2.0] * 4 and other.tolist() == [1.0] * 4
