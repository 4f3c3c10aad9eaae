"""Slices whose places change from step to step, in one program."""

import random

import pytest
import torch

from torch_xdist import metrics
from torch_xdist.core.devices import steps


def programs_of(step, places):
    """How many programs each call of a step compiles."""
    steps.sync()  # What earlier tests have left is no part of the first.
    counts = []
    for place in places:
        before = metrics.counter_value("UncachedCompile") or 0
        step(place)
        steps.sync()
        counts.append((metrics.counter_value("UncachedCompile") or 0) - before)
    return counts


@pytest.mark.parametrize(
    "taken",
    [
        lambda x, i: x[i : i + 4],
        lambda x, i: x[i],
        lambda x, i: x[:, i : i + 2],
        lambda x, i: x[i, 1:5],
        lambda x, i: x[i : i + 3][1, i % 5],
        lambda x, i: torch.cat([x[i], x[-1 - i]]),
        lambda x, i: x.narrow(1, i, 3).t(),
        lambda x, i: x[i].view(3, 4).permute(1, 0)[None].squeeze(0)[1],
        lambda x, i: x[2:][i : i + 2].reshape(-1),
        # With steps, and of what the step has computed.
        lambda x, i: x[i : i + 5 : 2],
        lambda x, i: x[:, i : i + 5 : 4].t(),
        lambda x, i: (x * 2)[i : i + 4],
        lambda x, i: x.abs()[i, 1:5].view(2, 2),
        lambda x, i: (x + 1)[:, i][None].expand(3, -1),
        lambda x, i: (x - 1)[i : i + 6][1:3, i % 5],
    ],
)
def test_a_slice_that_moves_is_one_program_after_the_second(taken):
    whole = torch.randn(16, 12)
    device, results = whole.to("xla"), {}

    def step(i):
        results[i] = taken(device, i).neg().clamp(min=-0.5)

    counts = programs_of(step, range(8))
    assert sum(counts[:2]) <= 2 and counts[2:] == [0] * 6
    for i, found in results.items():
        assert torch.equal(found.cpu(), taken(whole, i).neg().clamp(min=-0.5))


@pytest.mark.parametrize(
    "write",
    [
        lambda x, i, v: x[i].copy_(v),
        lambda x, i, v: x[:, i].fill_(2.5),
        lambda x, i, v: x[i : i + 3].mul_(2),
        lambda x, i, v: x[i : i + 5 : 2].add_(v),
        lambda x, i, v: x[:, i : i + 2].copy_(v[:2]),
        lambda x, i, v: x.view(4, 4, 12)[1][:, i].zero_(),
        lambda x, i, v: x[i].view(3, 4)[1].copy_(v[:4]),
        lambda x, i, v: x.copy_(x.slice_scatter(v[None].expand(2, -1), 0, i, i + 2)),
        lambda x, i, v: x.copy_(x.select_scatter(v, 0, -1 - i)),
    ],
)
def test_what_is_written_at_a_place_that_moves_is_one_program_after_the_second(write):
    whole, values = torch.randn(16, 12), torch.randn(12)
    device, given = whole.to("xla"), values.to("xla")

    def step(i):
        write(device, i, given)

    counts = programs_of(step, range(8))
    assert sum(counts[:2]) <= 2 and counts[2:] == [0] * 6
    for i in range(8):
        write(whole, i, values)
    torch.testing.assert_close(device.cpu(), whole)


def test_gradients_of_what_moves_are_of_one_program_too():
    weight = torch.randn(16, 12)
    here, there = (weight.clone().to(d).requires_grad_() for d in ("cpu", "xla"))
    here.grad, there.grad = torch.zeros_like(here), torch.zeros_like(there)
    steps.sync()

    def step(i, w=there):
        loss = (w * 2)[i : i + 4 : 2].square().sum() + w.sin()[i, 2:5].sum() + w[:, i].sum()
        loss.backward()

    counts = programs_of(step, range(8))
    assert sum(counts[:2]) <= 2 and counts[2:] == [0] * 6
    for i in range(8):
        step(i, here)
    torch.testing.assert_close(there.grad.cpu(), here.grad)


def test_slices_that_stay_beside_one_that_moves_are_constants():
    x = torch.randn(16, 12).to("xla")

    def step(i, j=0):
        y = x * 2
        return y[1:3].sum() + y[j].sum() + y[i : i + 4].sum()

    before = metrics.counter_value("MovingSlices") or 0
    kept = []
    programs_of(lambda i: kept.append(step(i)), range(4))
    assert metrics.counter_value("MovingSlices") - before == 3
    # Another one begins to move: one more program, in which both do.
    counts = programs_of(lambda i: kept.append(step(i, i)), range(4, 8))
    assert counts == [1, 0, 0, 0]
    numbers = [float(step(i)) for i in range(4)] + [float(step(i, i)) for i in range(4, 8)]
    torch.testing.assert_close(torch.stack(kept).cpu(), torch.tensor(numbers))


def test_training_on_a_dataset_of_the_device_is_two_programs():
    data, targets = torch.randn(64, 8), torch.randn(64, 2)

    def trained(place):
        torch.manual_seed(0)
        model = torch.nn.Linear(8, 2).to(place)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        x, y, losses = data.to(place), targets.to(place), []

        def step(i):
            optimizer.zero_grad()
            loss = (model(x[i : i + 4]) - y[i : i + 4]).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())

        return programs_of(step, range(0, 64, 4)), torch.stack(losses).cpu()

    (_, here), (counts, there) = trained("cpu"), trained("xla")
    assert counts == [1, 1] + [0] * 14
    torch.testing.assert_close(there, here)


def test_a_slice_that_stays_is_a_constant():
    x = torch.randn(4, 6).to("xla")
    before = metrics.counter_value("MovingSlices")
    for _ in range(3):
        (x[1:3] * 2).sum()
        steps.sync()
    assert metrics.counter_value("MovingSlices") == before


def test_what_was_sliced_may_be_gone_or_written_after_the_step():
    results = []
    for i in range(4):
        x = torch.arange(12.0).to("xla")
        part = x[i : i + 2] * 2
        x.add_(100) if i % 2 else None
        del x
        steps.sync()
        results.append(part.tolist())
    assert results == [[0, 2], [2, 4], [4, 6], [6, 8]]


def test_slices_of_several_tensors_at_random_places_are_what_the_cpu_takes():
    draw = random.Random(0)
    whole = [torch.randn(10, 7), torch.randn(7, 10)]
    device = [x.to("xla") for x in whole]
    for _ in range(30):
        a, b, c = (draw.randrange(5) for _ in range(3))
        results = []
        for x, y in (whole, device):
            kept = y[b]
            z = x[a : a + 3, b : b + 2] @ y[c : c + 2, a:] + x[a, 0] * y[1, 2]
            x = x.clone()
            x[c].fill_(1.0)
            results.append((z.sum(1), x[c : c + 2], kept + 1))
        steps.sync()
        for mine, theirs in zip(results[1], results[0]):
            torch.testing.assert_close(mine.cpu(), theirs)
