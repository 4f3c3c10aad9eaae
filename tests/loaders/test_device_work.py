"""Datasets and collate functions that compute on the device, on the loader's threads."""

import pytest
import torch

import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
from torch_xdist.core.devices import transfer
from torch_xdist.core.run import cuts
from torch_xdist.loaders.errors import BatchError
from torch_xdist.loaders.feed import mover
from torch_xdist.progress import PROGRESS


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
    cuts.LOG.clear()
    steps_before = PROGRESS.step
    device = xm.xla_device()
    found = train(pl.ParallelLoader(loader, [device]).per_device_loader(device), there.to("xla"))
    for one, other in zip(found, expected):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    log = list(cuts.LOG)
    assert PROGRESS.step - steps_before <= 22
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


def test_dicts_of_tensors_arrive_as_dicts_in_one_move_whatever_is_in_them():
    moves = []

    def move(tensors, device):
        moves.append(len(tensors))
        return transfer.all_to_device(tensors, device)

    one, there = torch.arange(3), torch.ones(2).to("xla")
    send = mover(move, torch.device("xla:0"))
    flat = send({"x": one, 7: one + 1})
    assert list(flat) == ["x", 7] and [t.tolist() for t in flat.values()] == [[0, 1, 2], [1, 2, 3]]
    assert {t.device.type for t in flat.values()} == {"xla"}
    shared = send({"x": one, "y": one, "n": 3})
    assert shared["x"] is shared["y"] and shared["x"] is not one and shared["n"] == 3
    mixed = send({"x": one, "there": there})
    assert mixed["there"] is there and mixed["x"].device.type == "xla"
    assert moves == [2, 1, 1] and send({}) == {}


def test_a_tensor_of_a_dict_that_cannot_be_moved_is_named():
    send = mover(transfer.all_to_device, torch.device("xla:0"))
    with pytest.raises(BatchError, match=r"batch\['odd'\], a torch.float32 tensor of shape \(2,"):
        send({"x": torch.ones(2), "odd": torch.ones(2).to_sparse()})


def test_what_is_sent_needs_gradients_where_its_source_does():
    sources = [torch.ones(2, requires_grad=True), torch.ones(2)]
    [sent] = xm.send_cpu_data_to_device([sources], "xla:0")
    assert [tensor.requires_grad for tensor in sent] == [True, False]
    assert all(tensor.is_leaf and tensor.device.type == "xla" for tensor in sent)
    sources[1].zero_()
    assert sent[1].tolist() == [1, 1]
