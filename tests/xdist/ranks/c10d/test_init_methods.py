"""The init methods and torch_xla's private names around them, on a world of one."""

import os
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from torch_xdist.errors import WorldError
from torch_xdist.ranks.c10d.init_methods import AloneStore
from torch_xla._internal.rendezvous import DummyStore, pjrt_rendezvous_handler
from torch_xla.distributed.xla_backend import new_xla_process_group


@pytest.fixture
def world():
    # The first group of a process that no launcher started says the rank in the environment.
    with mock.patch.dict(os.environ):
        dist.init_process_group("xla", init_method="pjrt://")
        yield
        dist.destroy_process_group()


def test_one_rank_meets_itself():
    (found,) = pjrt_rendezvous_handler("xla://")
    assert found[1:] == (0, 1)
    found[0].set("key", "value")
    assert found[0].get("key") == b"value"


def test_a_group_takes_torch_xlas_options(world):
    group = new_xla_process_group([0], pg_options={"xla_pg_options": {"spmd": True}})
    x = torch.ones(2, device="xla")
    dist.all_reduce(x, group=group)
    assert x.tolist() == [1, 1]
    assert dist.get_world_size(new_xla_process_group()) == 1


def test_a_dummy_store_is_a_store():
    assert isinstance(DummyStore("any", 3), dist.Store)


def test_a_rank_that_is_alone_waits_for_nobody():
    store = AloneStore()
    store.set("mine", b"1")
    assert store.get("mine") == b"1" and store.add("count", 2) == 2 and not store.check(["theirs"])
    words = r"""waits for 'theirs' of another rank, and none .* only "xla" needs none"""
    with pytest.raises(WorldError, match=words):
        store.wait(["mine", "theirs"])
