"""torch.distributed on the xla device, between real processes, against what c10d promises."""

import subprocess
import sys
import types
import warnings
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from device_ranks import DeviceRanks

import torch_xla  # noqa: F401 - the device
from torch_xdist import world
from torch_xdist.errors import WorldError
from torch_xdist.ranks.c10d import backend, process_group
from torch_xdist.system.rank import Rank


def join(rank, size):
    import torch.distributed as dist

    import torch_xdist.ranks.c10d.backend  # noqa: F401

    dist.init_process_group("xla", init_method="xla://")
    return dist.get_backend(), dist.get_rank(), dist.get_world_size()


@pytest.fixture(scope="module")
def three() -> Iterator[DeviceRanks]:
    with DeviceRanks(3) as ranks:
        assert ranks.run(join) == [("xla", rank, 3) for rank in range(3)]
        yield ranks


def collectives(rank, size, device):
    found = {}
    mine = torch.arange(3.0, device=device) + rank

    def kept(name, *tensors):
        found[name] = [t.cpu().tolist() for t in tensors]

    for name in ("SUM", "AVG", "PRODUCT", "MIN", "MAX"):
        value = mine.clone()
        dist.all_reduce(value, op=getattr(dist.ReduceOp, name))
        kept(name, value)
    for name in ("BAND", "BOR", "BXOR"):
        value = torch.tensor([rank + 1], device=device)
        dist.all_reduce(value, op=getattr(dist.ReduceOp, name))
        kept(name, value)
    value = mine.clone()
    dist.reduce(value, 1)
    kept("reduce", value)
    value = mine.clone()
    dist.broadcast(value, 2)
    kept("broadcast", value)
    outputs = [torch.zeros(3, device=device) for _ in range(size)]
    dist.all_gather(outputs, mine)
    kept("all_gather", *outputs)
    outputs = [torch.zeros(r + 1, device=device) for r in range(size)]
    dist.all_gather(outputs, torch.full((rank + 1,), float(rank), device=device))
    kept("uneven", *outputs)
    outputs = [torch.zeros(3, device=device) for _ in range(size)] if rank == 1 else None
    dist.gather(mine, outputs, dst=1)
    kept("gather", *(outputs or []))
    output = torch.zeros(2, device=device)
    inputs = [torch.full((2,), 10.0 * r, device=device) for r in range(size)]
    dist.scatter(output, inputs if rank == 2 else None, src=2)
    kept("scatter", output)
    dist.reduce_scatter(output, inputs)
    kept("reduce_scatter", output)
    outputs = [torch.zeros(1, device=device) for _ in range(size)]
    dist.all_to_all(outputs, list((mine * 10).split(1)))
    kept("all_to_all", *outputs)
    output = torch.zeros(3, device=device)
    dist.all_to_all_single(output, mine * 10)
    kept("single", output)
    output = torch.zeros(3 * (rank + 1), device=device)
    sizes = list(range(1, size + 1))
    source = torch.arange(6.0, device=device) + 10 * rank
    dist.all_to_all_single(output, source, [rank + 1] * size, sizes)
    kept("splits", output)
    output = torch.zeros(9, device=device)
    dist.get_backend()
    work = dist.group.WORLD.all_gather_single(output, mine)
    work.wait()
    kept("gather_single", output)
    output = torch.zeros(1, device=device)
    dist.group.WORLD.reduce_scatter_single(output, mine).wait()
    kept("scatter_single", output)
    dist.barrier()
    return found


@pytest.mark.parametrize("device", ["xla", "cpu"])
def test_every_collective_of_c10d_gives_every_rank_its_result(three, device):
    xs = [torch.arange(3.0) + rank for rank in range(3)]
    total = (xs[0] + xs[1] + xs[2]).tolist()
    rows = [x.tolist() for x in xs]
    for rank, found in enumerate(three.run(collectives, device)):
        assert found["SUM"] == [total]
        assert found["AVG"] == [(torch.tensor(total) / 3).tolist()]
        assert found["PRODUCT"] == [(xs[0] * xs[1] * xs[2]).tolist()]
        assert (found["MIN"], found["MAX"]) == ([rows[0]], [rows[2]])
        assert (found["BAND"], found["BOR"], found["BXOR"]) == ([[0]], [[3]], [[0]])
        assert found["reduce"] == [total if rank == 1 else rows[rank]]
        assert found["broadcast"] == [rows[2]]
        assert found["all_gather"] == rows
        assert found["uneven"] == [[0.0], [1.0] * 2, [2.0] * 3]
        assert found["gather"] == (rows if rank == 1 else [])
        assert found["scatter"] == [[10.0 * rank] * 2]
        assert found["reduce_scatter"] == [[30.0 * rank] * 2]
        assert found["all_to_all"] == [[10.0 * (r + rank)] for r in range(3)]
        assert found["single"] == [[10.0 * (r + rank) for r in range(3)]]
        start = rank * (rank + 1) // 2
        assert found["splits"] == [
            [10.0 * r + start + i for r in range(3) for i in range(rank + 1)]
        ]
        assert found["gather_single"] == [[v for row in rows for v in row]]
        assert found["scatter_single"] == [[total[rank]]]


def groups_and_objects(rank, size):
    found = {}
    outer = dist.new_group([0, 2])
    if rank != 1:
        value = torch.full((2,), float(rank + 1), device="xla")
        dist.all_reduce(value, group=outer)
        dist.broadcast(value, 2, group=outer)
        found["outer"] = value.cpu().tolist()
    gathered = [None] * size
    dist.all_gather_object(gathered, {"rank": rank, "text": "x" * rank})
    shared = [f"from {rank}", rank]
    dist.broadcast_object_list(shared, src=2)
    received = [None]
    dist.scatter_object_list(received, [f"to {r}" for r in range(size)] if rank == 0 else None)
    found["objects"] = gathered, shared, received
    return found


def test_groups_of_some_ranks_and_objects(three):
    gathered = [{"rank": rank, "text": "x" * rank} for rank in range(3)]
    for rank, found in enumerate(three.run(groups_and_objects)):
        assert found.get("outer") == (None if rank == 1 else [4.0, 4.0])
        assert found["objects"] == (gathered, ["from 2", 2], [f"to {rank}"])


def messages(rank, size):
    after, before = (rank + 1) % size, (rank - 1) % size
    pending = torch.ones(1, device="xla")
    works = [dist.all_reduce(pending, async_op=True)]
    incoming = torch.zeros(2, device="xla")
    works.append(dist.isend(torch.full((2,), float(rank), device="xla"), after))
    works.append(dist.irecv(incoming, before))
    for work in works:
        work.wait()
    other = torch.zeros(1, device="xla")
    if rank == 0:
        sources = sorted(dist.recv(other) for _ in range(size - 1))
    else:
        dist.send(other + rank, 0, tag=0)
        sources = None
    # One's next message may come before another's first, which rank 0 takes from anybody.
    dist.barrier()
    pair = [
        dist.P2POp(dist.isend, torch.full((1,), 5.0 + rank, device="xla"), after),
        dist.P2POp(dist.irecv, other, before),
    ]
    for work in dist.batch_isend_irecv(pair):
        work.wait()
    done = all(work.is_completed() for work in works)
    return incoming.cpu().tolist(), sources, other.item(), pending.item(), done


def test_point_to_point_and_async_works(three):
    for rank, found in enumerate(three.run(messages)):
        before = (rank - 1) % 3
        sources = None if rank else [1, 2]
        assert found == ([float(before)] * 2, sources, 5.0 + before, 3.0, True)


def coalesced(rank, size):
    values = [torch.full((2,), float(rank)).to("xla"), torch.full((3,), 1.0).to("xla")]
    with dist.distributed_c10d._coalescing_manager():
        for value in values:
            dist.all_reduce(value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dist.all_reduce_coalesced(values)
    return [value.cpu().tolist() for value in values]


def scattered_together(rank, size):
    group = dist.group.WORLD
    inputs = [[torch.full((2,), float(rank + m), device="xla") for m in range(size)]] * 2
    outputs = [torch.zeros(2, device="xla") for _ in range(2)]
    group.reduce_scatter_coalesced(outputs, inputs, dist.ReduceScatterOptions()).wait()
    return [output.tolist() for output in outputs]


def test_several_reduce_scatters_are_one_row(three):
    expected = [[[3.0 + 3 * m] * 2] * 2 for m in range(3)]
    assert three.run(scattered_together) == expected


def test_a_group_is_made_as_torch_xla_makes_it():
    group = process_group.ProcessGroupXla(None, 0, 1, None)
    x = torch.ones(2, device="xla")
    group.allreduce_coalesced([x])
    assert (group.rank(), group.size(), x.tolist()) == (0, 1, [1, 1])
    with pytest.raises(NotImplementedError, match="groups of the xla backend have no options"):
        group.Options()


def test_coalesced_collectives_travel_together(three):
    assert three.run(coalesced) == [[[9.0] * 2, [9.0] * 3]] * 3


def refusals(rank, size):
    found = []
    for call in (
        lambda: dist.all_gather([torch.zeros(1, device="xla")] * 2, torch.zeros(1, device="xla")),
        lambda: dist.group.WORLD.allreduce([torch.zeros(1, device="xla")], "no reduction"),
    ):
        try:
            call()
        except (ValueError, NotImplementedError) as error:
            found.append(str(error))
    return found


def test_wrong_calls_are_refused_at_once(three):
    for short, unknown in three.run(refusals):
        assert "all_gather: the list has 2 tensors, and the group 3 ranks" in short
        assert "all_reduce: the xla backend does not have no reduction" in unknown


def ddp(rank, size, options):
    from torch.nn.parallel import DistributedDataParallel

    from torch_xdist.core.devices import steps

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.used = torch.nn.Sequential(
                torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)
            )
            if options.get("find_unused_parameters"):
                self.unused = torch.nn.Linear(2, 2)

        def forward(self, x):
            return self.used(x)

    torch.manual_seed(rank)
    model = Model()
    wrapped = DistributedDataParallel(model.to("xla"), **options)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(7)
    for step in range(3):
        mine = torch.randn(3 * size, 4, generator=generator).chunk(size)[rank].to("xla")
        if step == 0:
            with wrapped.no_sync():
                wrapped(mine).square().mean().backward()
        wrapped(mine).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        steps.sync()
    return [p.detach().cpu() for p in model.used.parameters()]


@pytest.mark.parametrize(
    "options",
    [
        {"gradient_as_bucket_view": True},
        pytest.param({}, marks=pytest.mark.long),
        pytest.param({"find_unused_parameters": True}, marks=pytest.mark.long),
    ],
    ids=["views", "plain", "unused"],
)
def test_distributed_data_parallel_trains_like_one_process(three, options):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(7)
    for step in range(3):
        batch = torch.randn(9, 4, generator=generator)
        for _ in range(2 if step == 0 else 1):
            model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    for found in three.run(ddp, options):
        for expected, parameter in zip(model.parameters(), found):
            torch.testing.assert_close(parameter, expected.detach(), rtol=1e-5, atol=1e-6)


def sharded_optimizer(rank, size):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3).to("xla")
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.Adam, lr=0.1
    )
    model(torch.ones(2, 4).to("xla")).square().mean().backward()
    optimizer.step()
    return [p.detach().cpu() for p in model.parameters()]


@pytest.mark.long
def test_torchs_zero_redundancy_optimizer(three):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    model(torch.ones(2, 4)).square().mean().backward()
    optimizer.step()
    for found in three.run(sharded_optimizer):
        for expected, parameter in zip(model.parameters(), found):
            torch.testing.assert_close(parameter, expected.detach(), rtol=1e-5, atol=1e-6)


def checkpointed(rank, size, folder):
    import torch.distributed.checkpoint as dcp

    torch.manual_seed(rank)
    model = torch.nn.Linear(3, 2).to("xla")
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    dcp.save({"model": wrapped.state_dict()}, checkpoint_id=folder)
    before = model.weight.detach().cpu().clone()
    with torch.no_grad():
        model.weight.zero_()
    state = {"model": wrapped.state_dict()}
    dcp.load(state, checkpoint_id=folder)
    wrapped.load_state_dict(state["model"])
    return torch.equal(model.weight.detach().cpu(), before), bool(before.any())


@pytest.mark.long
def test_distributed_checkpoints_are_saved_and_loaded(three, tmp_path):
    assert three.run(checkpointed, str(tmp_path)) == [(True, True)] * 3


def test_more_ranks_than_the_launcher_started_are_refused(monkeypatch):
    monkeypatch.setattr(world, "_current", Rank(launcher="torchrun"))
    options = types.SimpleNamespace(global_ranks_in_group=[0, 1], group_size=2, group_rank=0)
    with pytest.raises(WorldError, match=r"'xla'\): 2 ranks, but this process is"):
        backend._create(options)


def test_the_backend_is_registered_once():
    backend.register()
    assert "xla" in dist.Backend.backend_list


def test_importing_torch_xla_is_enough_for_a_process_group():
    """torch 2.15 attaches a flight recorder to each group whose backend does not refuse it."""
    code = """
import torch, torch_xla, torch.distributed as dist
dist.init_process_group("xla", init_method="xla://")
x = torch.ones(2, device="xla")
dist.all_reduce(x)
print(x.tolist(), dist.get_backend(), dist.new_group([0]).size())
if hasattr(dist, "get_backend_impl"):  # torch 2.15
    assert dist.get_backend_impl() is dist.group.WORLD
dist.destroy_process_group()
import os
os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
dist.init_process_group("xla", init_method="env://")
dist.all_reduce(x)
dist.destroy_process_group()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.strip()) == (0, "[1.0, 1.0] xla 1"), done.stderr
