"""Replays of steps with collectives, on two ranks, and of several threads in one process."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from device_ranks import DeviceRanks
from torch import nn

import torch_xla
from torch_xdist import metrics


def training(rank, size, pure):
    """Trains on batches that differ from rank to rank; what the launcher and the ranks are told."""
    import torch
    from torch import nn

    import torch_xla
    import torch_xla.core.xla_model as xm
    from torch_xdist import metrics
    from torch_xdist.progress import PROGRESS

    torch.manual_seed(0)
    model = nn.Linear(3, 1).to("xla")
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        xm.optimizer_step(optimizer)
        return loss

    step = torch_xla.compile(step, pure=pure)
    metrics.clear_all()
    told = []
    for turn in range(7):
        before = PROGRESS.step, PROGRESS.collective
        loss = step(torch.full((2, 3), float(rank + turn)).to("xla")).item()
        told.append((loss, PROGRESS.step - before[0], PROGRESS.collective - before[1]))
    told.append((PROGRESS.name, PROGRESS.fingerprint))
    replayed = metrics.counter_value("ReplayedStep") or 0
    return told, [p.tolist() for p in model.parameters()], replayed


@pytest.mark.long
def test_ranks_that_replay_compute_and_say_what_others_do():
    with DeviceRanks(2) as ranks:
        plain, pure = ranks.run(training, False), ranks.run(training, True)
    for one, other in zip(plain, pure):
        assert one[:2] == other[:2]
        assert (one[2], other[2]) == (0, 4)
    assert pure[0][1] == pure[1][1]


def test_each_thread_replays_for_itself():
    model = nn.Linear(2, 1)
    steps = []
    for _ in range(2):
        mine = nn.Linear(2, 1)
        mine.load_state_dict(model.state_dict())
        mine.to("xla")
        steps.append((mine, torch.optim.SGD(mine.parameters(), 0.1)))

    @torch_xla.compile(pure=True)
    def step(mine, optimizer, x):
        optimizer.zero_grad()
        mine(x).square().sum().backward()
        optimizer.step()

    def train(index):
        for _ in range(6):
            step(*steps[index], torch.ones(3, 2).to("xla") * (index + 1))
        torch_xla.sync()
        return [p.tolist() for p in steps[index][0].parameters()]

    before = metrics.counter_value("ReplayedStep") or 0
    with ThreadPoolExecutor(2) as threads:
        found = [*threads.map(train, range(2))]
    assert found[0] != found[1]
    assert metrics.counter_value("ReplayedStep") - before >= 4
