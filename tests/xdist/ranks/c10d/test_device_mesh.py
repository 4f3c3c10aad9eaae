"""torch's own fully_shard and DTensor on meshes of xla devices, over two real ranks."""

import importlib

import pytest
import torch
from torch import nn


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 64), nn.Tanh(), nn.Linear(64, 33), nn.ReLU())


def batch_of(rank, step):
    return torch.randn(4, 5, generator=torch.Generator().manual_seed(10 * step + rank))


def fully_sharded(rank, size):
    """Parameters after three steps, cuts, and the sizes of the buffers between steps."""
    import gc

    import jax
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    import torch_xla
    import torch_xla.distributed.xla_backend
    from torch_xdist.core.run import cuts

    mesh = init_device_mesh("xla", (size,))
    model = make_model().to("xla")
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    log = []
    for step in range(3):
        optimizer.zero_grad()
        cuts.LOG.clear()
        model(batch_of(rank, step).to("xla")).square().mean().backward()
        optimizer.step()
        torch_xla.sync()
        log.append([(cut.reason, cut.compiled) for cut in cuts.LOG])
    optimizer.zero_grad()
    gc.collect()
    torch_xla.sync(wait=True)
    held = sorted(array.size for array in jax.live_arrays())
    whole = [p.full_tensor().detach().cpu() for p in model.parameters()]
    return whole, [tuple(p.to_local().shape) for p in model.parameters()], log, held


@pytest.mark.long
def test_fully_shard_trains_like_a_whole_model(two):
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        for rank in range(2):
            (model(batch_of(rank, step)).square().mean() / 2).backward()
        optimizer.step()
    for whole, shapes, log, held in two.run(fully_sharded):
        for found, expected in zip(whole, model.parameters()):
            torch.testing.assert_close(found, expected.detach(), rtol=1e-5, atol=1e-6)
        assert shapes[0] == (32, 5)
        assert log[-1] == [("sync", False)]
        # The shards, and nothing whole; some scalars.
        assert max(held) == 17 * 64 and sum(held) < 17 * 64 + 32 * 5 + 32 + 17 + 10


def without_a_mesh(rank, size):
    """The mesh that fully_shard made, and what a barrier warned of."""
    import warnings

    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    import torch_xla.distributed.xla_backend  # noqa: F401

    model = nn.Linear(4, 4).to(torch.accelerator.current_accelerator())
    fully_shard(model)
    mesh = model.weight.device_mesh
    with warnings.catch_warnings(record=True) as told:
        dist.barrier()
    return mesh.device_type, tuple(mesh.shape), [str(warning.message) for warning in told]


def test_fully_shard_without_a_mesh_takes_one_of_the_accelerator(two):
    assert two.run(without_a_mesh) == [("xla", (2,), [])] * 2


def tensors(rank, size):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard

    import torch_xla.distributed.xla_backend  # noqa: F401

    mesh = init_device_mesh("xla", (1, size), mesh_dim_names=("copies", "shards"))
    rows = DTensor.from_local(torch.full((1, 3), float(rank)).to("xla"), mesh["shards"], [Shard(0)])
    doubled = (rows * 2).redistribute(mesh["shards"], [Replicate()])
    return rows.full_tensor().tolist(), doubled.to_local().tolist(), rows.sum().full_tensor().item()


def test_distributed_tensors_gather_and_reduce(two):
    expected = [[0.0] * 3, [1.0] * 3], [[0.0] * 3, [2.0] * 3], 3.0
    assert two.run(tensors) == [expected, expected]


@pytest.mark.parametrize("name", ["chunk_cat", "chunk_cat_mixed_dtype"])
def test_gradients_of_other_dtypes_are_laid_out_for_the_reduction_as_by_torch(name):
    for module in ("torch.distributed.fsdp", "torch_xla.distributed.xla_backend"):
        importlib.import_module(module)
    if not hasattr(torch.ops.fsdp, name):
        pytest.skip(f"new in torch 2.15: {name}")
    second = torch.bfloat16 if "mixed" in name else torch.float32
    grads = [torch.arange(10.0).reshape(5, 2), torch.arange(3.0).to(second)]

    def laid_out(device):
        out = torch.zeros(2, 8, device=device)
        getattr(torch.ops.fsdp, name)([g.to(device) for g in grads], 0, 2, out=out)
        return out.tolist()

    assert laid_out("xla") == laid_out("cpu")
