"""`mark_sharding`: what is marked lies so, now and after it was written to."""

import numpy as np
import pytest
import torch
from spmd_process import SpmdProcess

import torch_xla
import torch_xla.distributed.spmd as xs
from torch_xdist.core.run import cuts
from torch_xdist.errors import ShardingError

four = SpmdProcess(4)
spec_of = torch_xla._XLAC._get_xla_sharding_spec


def mesh(*shape: int, names: tuple[str, ...] | None = None) -> xs.Mesh:
    return xs.Mesh(np.arange(4), shape, names)


@four
def test_a_marked_parameter_is_cut_over_the_devices_at_once():
    before = len(cuts.LOG)
    weight = torch.arange(64.0).reshape(8, 8).to("xla")
    xs.mark_sharding(weight, mesh(2, 2), (0, 1))
    assert spec_of(weight) == "{devices=[2,2]0,1,2,3}"
    assert [shard.data.shape for shard in weight.value.buffer.addressable_shards] == [(4, 4)] * 4
    assert len(cuts.LOG) == before


@four
def test_what_is_written_to_a_marked_tensor_stays_cut():
    x = torch.zeros(8, 4).to("xla")
    xs.mark_sharding(x, mesh(4), (0, None))
    for step in range(3):
        x += 1
        torch_xla.sync()
        assert spec_of(x) == "{devices=[4,1]0,1,2,3}", step
    assert x.cpu().tolist() == torch.full((8, 4), 3.0).tolist()


@four
def test_a_pending_tensor_is_cut_by_the_program_that_computes_it():
    x = torch.ones(8, 4).to("xla")
    y = x * 2
    xs.mark_sharding(y, mesh(4), (None, 0))
    assert y.value.buffer is None
    assert spec_of(y) == "{devices=[1,4]0,1,2,3}"
    torch_xla.sync()
    assert {shard.data.shape for shard in y.value.buffer.addressable_shards} == {(8, 1)}


@four
def test_a_dim_that_the_devices_do_not_divide_is_padded():
    x = torch.arange(5.0).to("xla")
    xs.mark_sharding(x, mesh(4), (0,))
    assert x.value.buffer.shape == (8,)
    x *= 2
    torch_xla.sync()
    assert x.value.buffer.shape == (8,)
    assert x.tolist() == [0, 2, 4, 6, 8]
    assert x.sum().item() == 20


@four
def test_a_tensor_that_is_cut_in_another_way_is_not_marked_again():
    x = torch.ones(8, 8).to("xla")
    xs.mark_sharding(x, mesh(2, 2), (0, 1))
    with pytest.raises(ShardingError, match=r"sharded as .*\[2,2\].* already, not as .*\[4,1\]"):
        xs.mark_sharding(x, mesh(4), (0, None))
    xs.clear_sharding(x)
    assert spec_of(x) == ""
    xs.mark_sharding(x, mesh(4), (0, None))
    assert spec_of(x) == "{devices=[4,1]0,1,2,3}"


@four
def test_a_spec_needs_an_entry_for_each_dim():
    x = torch.ones(8, 8).to("xla")
    with pytest.raises(ShardingError, match=r"spec length \(3\) should be equal to .* rank \(2\)"):
        xs.mark_sharding(x, mesh(4), (0, None, None))
