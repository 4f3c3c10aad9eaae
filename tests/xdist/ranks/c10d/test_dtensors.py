"""torch's DTensor, tensor parallel and hybrid sharding on ranks of the device."""

import pytest
import torch
from torch import nn


def operations(rank, size):
    """Each wrong result, and what ran on the CPU."""
    import torch.distributed.tensor as dt
    import torch_releases
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

    import torch_xla.distributed.xla_backend  # noqa: F401
    from torch_xdist import metrics

    mesh = init_device_mesh("xla", (size,))
    left, right = torch.arange(12.0).reshape(4, 3), torch.arange(12.0).reshape(3, 4)
    places, checks = (Shard(0), Shard(1), Replicate()), []

    def check(name, found, expected):
        whole = found.full_tensor() if isinstance(found, dt.DTensor) else found
        checks.append((name, whole.detach(), expected))

    def put(value, place, **options):
        return distribute_tensor(value.to("xla"), mesh, [place], **options)

    def clipped(value):
        parameter = nn.Parameter(value)
        parameter.grad = value.clone()
        return nn.utils.clip_grad_norm_([parameter], 1.0)

    view = 6
    functions = [
        (lambda x: x + 1),
        (lambda x: x.sum(0)),
        (lambda x: x.max()),
        (lambda x: x.softmax(1)),
        (lambda x: nn.functional.layer_norm(x, (3,))),
        (lambda x: torch.cat([x, x.t().t()], 1)),
        (lambda x: x.view(12)),
        (lambda x: x[1:3]),
        (lambda x: x.norm()),
        (lambda x: x.norm(1, dim=0)),
        (lambda x: x.clone().add_(2).mul_(3)),
        clipped,
    ]
    for place in places:
        for number, function in enumerate(functions):
            if number == view and not torch_releases.FLATTENS_DIVIDED_DIMS and place.is_shard(1):
                continue
            check((number, place), function(put(left, place)), function(left))
        for other in places:
            check(("@", place, other), put(left, place) @ put(right, other), left @ right)
            moved = put(left, place).redistribute(mesh, [other])
            check(("to", place, other), moved, left)
        leaf = put(left, place).requires_grad_()
        (leaf * leaf).sum().backward()
        check(("gradient", place), leaf.grad, 2 * left)
    check("partial", dt.DTensor.from_local(left.to("xla"), mesh, [Partial()]), left * size)
    check("uneven", put(torch.arange(5.0), Shard(0)) * 2, torch.arange(5.0) * 2)
    check("ones", dt.ones((4, 3), device_mesh=mesh, placements=[Shard(0)]), torch.ones(4, 3))
    check("from rank 0", put(left + rank, Shard(0)), left)
    own = torch.cat([(left + r).chunk(size)[r] for r in range(size)])
    check("from each rank", put(left + rank, Shard(0), src_data_rank=None), own)
    assert str(put(left, Shard(0)).device) == "xla:0"
    wrong = [name for name, found, want in checks if not torch.allclose(found.cpu(), want)]
    return wrong, metrics.missing_lowerings()


def test_operations_and_placements_equal_those_of_plain_tensors(two):
    assert two.run(operations) == [([], [])] * 2


def random_numbers(rank, size):
    import torch.distributed.tensor as dt
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    import torch_xla.distributed.xla_backend  # noqa: F401

    mesh = init_device_mesh("xla", (size,))
    torch.manual_seed(3)
    apart = dt.rand((40,), device_mesh=mesh, placements=[Shard(0)])
    same = distribute_tensor(torch.ones(64), mesh, [Replicate()])
    kept = nn.functional.dropout(same, 0.5).to_local()
    own = torch.rand(4, device="xla")
    return apart.full_tensor().unique().numel(), kept.tolist(), own.tolist()


def test_ranks_draw_the_same_for_copies_and_others_for_shards(two):
    (distinct, kept, own), (_, kept_there, own_there) = two.run(random_numbers)
    assert distinct == 40 and kept == kept_there and 0 < sum(kept) < 128
    assert own == own_there


class Small(nn.Module):
    """Tokens [b, t] to logits [b, t, 8]."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.norm = nn.Embedding(8, 6), nn.LayerNorm(6)
        self.up, self.down, self.head = nn.Linear(6, 8), nn.Linear(8, 6), nn.Linear(6, 8)

    def forward(self, tokens):
        x = self.norm(self.tokens(tokens))
        return self.head(x + self.down(self.up(x).relu()))


def trained(model, end, device, optimizer_options):
    """The losses of three steps."""
    tokens = torch.randint(8, (2, 4), generator=torch.Generator().manual_seed(1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, **optimizer_options)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        end()
        losses.append(loss.item())
    return losses


def tensor_parallel(rank, size):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    import torch_xla
    import torch_xla.distributed.xla_backend
    from torch_xdist.core.run import cuts

    plan = {
        "tokens": RowwiseParallel(input_layouts=Replicate()),
        "up": ColwiseParallel(),
        "down": RowwiseParallel(),
        "head": ColwiseParallel(output_layouts=Replicate()),
    }
    model = parallelize_module(Small().to("xla"), init_device_mesh("xla", (size,)), plan)
    log = []

    def end():
        torch_xla.sync()
        log.append([(cut.reason, cut.compiled) for cut in cuts.LOG])
        cuts.LOG.clear()

    # foreach: torch refuses DTensors beside plain tensors in one call.
    losses = trained(model, end, "xla", {"foreach": False})
    return losses, model.up.weight.to_local().shape, log[-1]


def test_tensor_parallel_trains_like_one_process(two):
    expected = trained(Small(), lambda: None, "cpu", {})
    for losses, shape, last_cuts in two.run(tensor_parallel):
        assert losses == pytest.approx(expected, rel=1e-5) and shape == (4, 6)
        assert last_cuts == [("sync", False)]


def hybrid(rank, size):
    """Losses of rank 0's batch, which all ranks train with, over copies of shards."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    import torch_xla
    import torch_xla.distributed.xla_backend

    mesh = init_device_mesh("xla", (2, size // 2), mesh_dim_names=("copies", "shards"))
    model = Small().to("xla")
    for part in (model.up, model.down, model):
        fully_shard(part, mesh=mesh)
    losses = trained(model, torch_xla.sync, "xla", {})
    weight = model.head.weight
    assert mesh["shards"].get_local_rank() == rank % 2 and weight.full_tensor().shape == (8, 6)
    return losses, weight.to_local().shape


@pytest.mark.long
def test_hybrid_sharding_trains_like_one_process(four):
    expected = trained(Small(), lambda: None, "cpu", {})
    for losses, shape in four.run(hybrid):
        assert losses == pytest.approx(expected, rel=1e-5) and shape == (4, 6)


@pytest.fixture(scope="module")
def four():
    from device_ranks import DeviceRanks

    with DeviceRanks(4) as ranks:
        yield ranks
