"""torch.distributed in threads of one process that are ranks."""

import subprocess
import sys

import pytest
import torch
from device_ranks import on_threads
from torch import nn


def batch_of(rank, step):
    return torch.randn(4, 5, generator=torch.Generator().manual_seed(10 * step + rank))


def make_model():
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 6))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 3)
    return model


def replicated_training(rank, size, init):
    """The parameters after three steps, and the rank that torch told."""
    import torch.distributed as dist

    import torch_xla
    import torch_xla.distributed.xla_backend

    dist.init_process_group("xla", **(init(rank, size)))
    model = nn.parallel.DistributedDataParallel(make_model().to("xla"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        model(batch_of(rank, step).to("xla")).square().mean().backward()
        optimizer.step()
        torch_xla.sync()
    found = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    return found, [parameter.detach().cpu() for parameter in model.parameters()]


def by_environment(rank, size):
    import os

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=PORT)
    return {"init_method": "env://", "rank": rank, "world_size": size}


PORT = "0"
INITS = {"xla": lambda rank, size: {"init_method": "xla://"}, "env": by_environment}


def free_port():
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        return str(server.getsockname()[1])


@pytest.mark.parametrize("init", ["xla", pytest.param("env", marks=pytest.mark.long)])
def test_data_parallel_training_in_threads_equals_one_process(init, monkeypatch):
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        for rank in range(3):
            (model(batch_of(rank, step)).square().mean() / 3).backward()
        optimizer.step()
    monkeypatch.setitem(globals(), "PORT", free_port())
    made = INITS[init]
    for rank, (place, found) in enumerate(on_threads(3, lambda r, n: train_with(made, r, n))):
        assert place == (rank, 3)
        torch.testing.assert_close(found, list(model.parameters()), check_layout=False)


def train_with(init, rank, size):
    return replicated_training(rank, size, init)


def groups(rank, size):
    """Collectives of a subgroup, of everybody, by a group's name, and the store."""
    import threading

    import torch.distributed as dist
    from torch.distributed import _functional_collectives as functional

    import torch_xla.distributed.xla_backend  # noqa: F401
    from torch_xdist.core.devices.thread_identity import identity_of_thread

    found = {"before": dist.is_initialized()}
    dist.init_process_group("xla", init_method="xla://")
    dist.distributed_c10d._get_default_store().set(f"of {rank}", str(rank))
    found["store"] = dist.distributed_c10d._get_default_store().get(f"of {1 - rank % 2}")
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    x = torch.full((2,), float(rank), device="xla")
    dist.all_reduce(x, group=pairs[rank // 2])
    found["pair"] = x.tolist()
    named = functional.all_reduce(torch.ones(1, device="xla"), "sum", dist.group.WORLD)
    found["named"] = named.tolist()

    def ask():
        assume()
        found["helper"] = dist.get_rank()

    def ask_as_nobody():
        found["elsewhere"] = dist.is_initialized()

    assume = identity_of_thread()
    for target in (ask, ask_as_nobody):
        thread = threading.Thread(target=target)
        thread.start()
        thread.join()
    dist.destroy_process_group()
    found["after"] = dist.is_initialized()
    dist.init_process_group("xla", init_method="pjrt://")
    found["again"] = dist.get_rank()
    found["store again"] = dist.distributed_c10d._get_default_store().num_keys()
    return found


def test_each_thread_has_groups_of_its_own():
    for rank, found in enumerate(on_threads(4, groups)):
        kept = found.pop("store again")
        assert kept <= 8  # What torch itself writes; nothing of the first store.
        assert found == {
            "before": False,
            "store": str(1 - rank % 2).encode(),
            "pair": [1.0, 1.0] if rank < 2 else [5.0, 5.0],
            "named": [4.0],
            "helper": rank,
            "elsewhere": False,
            "after": False,
            "again": rank,
        }


def joins_twice(rank, size):
    """A thread that becomes a rank anew begins without groups."""
    import torch.distributed as dist

    import torch_xla.distributed.xla_backend  # noqa: F401
    from torch_xdist.core.devices import device
    from torch_xdist.ranks import replicas

    dist.init_process_group("xla", init_method="xla://")
    here = device.device()
    replicas.set_replication(here, device.devices())
    same = dist.is_initialized()
    replicas.set_replication(here, [])
    alone = dist.is_initialized()
    replicas.set_replication(here, device.devices())
    return same, alone, dist.is_initialized()


def test_a_thread_that_becomes_a_rank_anew_begins_without_groups():
    assert on_threads(2, joins_twice) == [(True, False, False)] * 2


def takes_the_variables_of_the_process(rank, size):
    import os

    import torch.distributed as dist

    import torch_xla.distributed.xla_backend  # noqa: F401

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    store = dist.HashStore()
    try:
        dist.init_process_group("xla", store=store, rank=0, world_size=1)
    except Exception as error:
        return type(error).__name__, str(error)
    return None


def test_the_rank_of_the_process_is_not_that_of_the_thread():
    for rank, (kind, text) in enumerate(on_threads(2, takes_the_variables_of_the_process)):
        assert kind == "WorldError"
        assert (
            f"rank 0 of 1, but this thread is rank {rank} of 2 by its device; give "
            f"init_method='xla://', or rank={rank} and world_size=2"
        ) in text


ASKED_LATE = """
import os, threading
os.environ["CPU_NUM_DEVICES"] = "2"
from torch_xdist.core.torch_side import registration
registration.register()
from torch_xdist.ranks import replicas

both = threading.Barrier(2)

def ranks(index):
    import torch.distributed as dist
    from torch_xdist.ranks.c10d import backend
    dist.init_process_group("xla", init_method="xla://")
    both.wait(60)
    return dist.get_rank(), dist.get_world_size()

print(replicas.spawn_threads(ranks))
"""


def test_ranks_that_ask_for_torch_distributed_late_have_it_to_themselves():
    command = [sys.executable, "-c", ASKED_LATE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "{0: (0, 2), 1: (1, 2)}", done.stderr
