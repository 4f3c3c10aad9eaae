"""The snippets of the documents that need several ranks: processes by spawn, threads by dp."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
import torch_xla.distributed.xla_multiprocessing as xmp
import torch_xla.utils.serialization as xser

STEPS = 4


def dataset():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(8 * STEPS, 6, generator=generator)
    return TensorDataset(x, x[:, :3].argmax(dim=1))


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def train(model, batches, step):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for data, target in batches:
        optimizer.zero_grad()
        F.cross_entropy(model(data), target).backward()
        step(optimizer)
    return {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}


def one_rank(index, folder):
    """What each rank does; every document's way once. Returns plain data."""
    device = xm.xla_device()
    rank, world = xm.get_ordinal(), xm.xrt_world_size()
    sampler = DistributedSampler(dataset(), num_replicas=world, rank=rank, shuffle=False)
    loader = DataLoader(dataset(), batch_size=8 // world, sampler=sampler)
    model = make_model().to(device)
    state = train(model, pl.MpDeviceLoader(loader, device), xm.optimizer_step)
    other = make_model().to(device)
    feed = pl.ParallelLoader(loader, [device]).per_device_loader(device)
    same = train(other, feed, xm.optimizer_step)
    xm.save(model.state_dict(), f"{folder}/model.pt")
    xser.save(model.state_dict(), f"{folder}/parts")
    xm.rendezvous("saved")
    value = torch.full((2,), float(rank + 1), device=device)
    pair = [value.clone(), value.clone() * 10]
    xm.all_reduce(xm.REDUCE_SUM, pair, scale=0.5)
    return {
        "rank": (index, rank, world, xm.is_master_ordinal()),
        "state": state,
        "same": all(torch.allclose(state[k], same[k]) for k in state),
        "sum": xm.all_reduce(xm.REDUCE_SUM, value).tolist(),
        "list": [t.tolist() for t in pair],
        "gathered": xm.all_gather(value).tolist(),
        "mesh": xm.mesh_reduce("mean", float(rank), lambda values: sum(values) / len(values)),
        "tags": xm.rendezvous("tag", str(rank).encode()),
        "device": str(device),
    }


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    return xmp.spawn(one_rank, args=(str(folder),), nprocs=2), folder


def test_every_rank_has_its_place_and_its_device(ranks):
    results, _ = ranks
    assert [r["rank"] for r in results] == [(0, 0, 2, True), (1, 1, 2, False)]
    assert [r["device"] for r in results] == ["xla:0", "xla:0"]


def test_two_ranks_on_half_batches_train_like_one_on_whole_batches(ranks):
    results, _ = ranks
    whole = train(make_model(), DataLoader(dataset(), batch_size=8), lambda o: o.step())
    # DistributedSampler deals the samples in turn, so the halves of a batch are other samples of
    # it: the mean over both is that of the whole.
    for result in results:
        torch.testing.assert_close(result["state"], whole, rtol=1e-5, atol=1e-6)
        assert result["same"]


def test_ranks_reduce_gather_and_meet(ranks):
    results, _ = ranks
    for result in results:
        assert result["sum"] == [3, 3] and result["list"] == [[1.5, 1.5], [15, 15]]
        assert result["gathered"] == [1, 1, 2, 2] and result["mesh"] == 0.5
        assert result["tags"] == [b"0", b"1"]


def test_the_master_writes_what_all_ranks_hold(ranks):
    results, folder = ranks
    torch.testing.assert_close(torch.load(folder / "model.pt"), results[1]["state"])
    torch.testing.assert_close(dict(xser.load(folder / "parts")), results[1]["state"])
