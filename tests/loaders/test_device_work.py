"""Datasets and collate functions that compute on the device, on the loader's threads."""

import torch

import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
from torch_xdist.core.run import cuts


def normalized(samples):
    """What a collate_fn of a torch_xla script may do: bytes to the device, numbers made there."""
    images = torch.stack([image for image, _ in samples]).to("xla")
    labels = torch.tensor([label for _, label in samples]).to("xla")
    return (images.float() / 255 - 0.5) * 2, labels


def test_a_collate_fn_on_the_device_gives_the_same_programs_at_every_step():
    torch.manual_seed(0)
    data = [
        (torch.randint(0, 256, (12,), dtype=torch.uint8), int(torch.randint(0, 3, ())))
        for _ in range(80)
    ]
    loader = torch.utils.data.DataLoader(data, batch_size=4, collate_fn=normalized)

    def train(batches, model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in batches:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        return [p.detach().cpu() for p in model.parameters()]

    there = torch.nn.Linear(12, 3)
    here = torch.nn.Linear(12, 3)
    here.load_state_dict(there.state_dict())
    expected = train(((x.cpu(), y.cpu()) for x, y in loader), here)
    before = len(cuts.LOG)
    device = xm.xla_device()
    found = train(pl.ParallelLoader(loader, [device]).per_device_loader(device), there.to("xla"))
    for one, other in zip(found, expected):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    log = list(cuts.LOG)[before:]
    # What the model was made of, the step, and what the collate_fn does, in any order of threads.
    assert sum(cut.compiled for cut in log) <= 3
    assert sum(cut.reason == "loader" for cut in log) == 20


class Marks:
    """A sharding that only notes what it is applied to."""

    def __init__(self):
        self.shapes = []

    def apply(self, tensor):
        self.shapes.append(tuple(tensor.shape))


def test_a_loader_sends_batches_by_hand_as_it_sends_its_own():
    marks = Marks()
    loader = pl.ParallelLoader([], ["xla:0"], 0, 3, input_sharding=marks)
    (batch,) = loader.send_cpu_data_to_device([{"x": torch.ones(2, 3)}], "xla:0")
    assert batch["x"].device.type == "xla" and marks.shapes == [(2, 3)]
    assert loader.batches_per_execution == 3
    loader.close()
    plain = pl.ParallelLoader([], ["xla:0"])
    (sent,) = plain.send_cpu_data_to_device([torch.ones(2)], torch.device("xla:0"))
    assert sent.tolist() == [1, 1] and plain.batches_per_execution == 1
    plain.close()
