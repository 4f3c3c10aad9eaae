"""Training on the device gives eager torch's losses, with one cut per step and one program."""

import pytest
import torch
from models import TRAININGS, Training

import torch_xla
import torch_xla.debug.metrics as met
from torch_xdist import metrics

STEPS = 20


def losses(training: Training, device: str) -> tuple[list[float], list[tuple[int, int]]]:
    """The loss of every step, and after every step the cuts and programs so far."""
    torch.manual_seed(0)
    model = training.model()
    batches = [training.batch() for _ in range(2)]
    model = model.to(device)
    moved = [tuple(t.to(device) for t in batch) for batch in batches]
    optimizer = training.optimizer(list(model.parameters()))
    met.clear_all()
    found, counts = [], []
    for step in range(STEPS):
        inputs, target = moved[step % 2]
        optimizer.zero_grad()
        loss = training.loss(model(inputs), target)
        loss.backward()
        optimizer.step()
        if device == "xla":
            torch_xla.sync()
            counts.append((cuts(), met.counter_value("UncachedCompile") or 0))
        found.append(loss.detach())
    return [float(loss) for loss in found], counts


def cuts() -> int:
    return sum(met.counter_value(n) or 0 for n in met.counter_names() if n.startswith("Cut."))


# Those that compile longest, and one of three recurrent ones.
LONG = {"resnet18", "digits", "gru"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.long] * (name in LONG)) for name in TRAININGS],
)
def test_twenty_steps_equal_eager_torch_with_one_cut_each(name: str) -> None:
    expected, _ = losses(TRAININGS[name], "cpu")
    found, counts = losses(TRAININGS[name], "xla")
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=0)
    assert [cut for cut, _ in counts] == list(range(1, STEPS + 1))
    assert counts[-1][1] == counts[1][1], "a program was compiled after the second step"
    assert metrics.missing_lowerings() == []
