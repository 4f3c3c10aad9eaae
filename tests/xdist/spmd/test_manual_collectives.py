"""xm's collectives on tensors that are sharded by hand: among the devices that hold the parts."""

import numpy as np
import pytest
import torch
from spmd_process import SpmdProcess

import torch_xla.core.xla_model as xm
import torch_xla.distributed.spmd as xs
from torch_xdist.collectives.errors import ArgumentError
from torch_xdist.errors import ShardingError

four = SpmdProcess(4)
X = torch.arange(16.0).reshape(4, 4)


def line():
    return xs.Mesh(np.arange(4), (4,))


def rows(tensor=X):
    """Each device's row of four; an XLAShardedTensor."""
    return xs.enable_manual_sharding(tensor.to("xla"), (0, None), mesh=line())


def whole(part, spec, shape):
    return xs.disable_manual_sharding(part, spec, shape, mesh=line()).global_tensor.cpu()


@four
def test_parts_are_reduced():
    total = xm.all_reduce(xm.REDUCE_SUM, rows(), 0.5)
    assert total.shape == (1, 4)
    assert torch.equal(whole(total, (None, None), (1, 4)), X.sum(0, keepdim=True) / 2)


@four
def test_parts_of_groups_are_reduced():
    largest = xm.all_reduce(xm.REDUCE_MAX, rows(), groups=[[1, 0], [3, 2]])
    assert torch.equal(whole(largest, (0, None), (4, 4)), X[[1, 1, 3, 3]])


@four
def test_a_list_of_parts_is_reduced_in_place():
    part = rows().global_tensor
    assert xm.all_reduce(xm.REDUCE_SUM, [part])[0] is part
    assert torch.equal(whole(part, (None, None), (1, 4)), X.sum(0, keepdim=True))


@four
def test_parts_are_gathered():
    gathered = xm.all_gather(rows())
    assert torch.equal(whole(gathered, (None, None), (4, 4)), X)
    pairs = xm.all_gather(rows(), 1, [[0, 2], [1, 3]])
    assert torch.equal(
        whole(pairs, (0, None), (4, 8)), torch.stack([X[[0, 2]].ravel(), X[[1, 3]].ravel()] * 2)
    )


@four
def test_parts_are_reduced_and_scattered():
    copies = xs.enable_manual_sharding(X.to("xla"), (None, None), mesh=line())
    piece = xm.reduce_scatter(xm.REDUCE_SUM, copies, 0.25, 0, 4)
    assert torch.equal(whole(piece, (0, None), (4, 4)), X)


@four
def test_parts_change_places():
    turned = xm.all_to_all(rows(), 1, 0, 4)
    assert torch.equal(whole(turned, (None, 0), (4, 4)), X)
    moved = xm.collective_permute(rows(), [[0, 1], [1, 2], [2, 3], [3, 0]])
    assert torch.equal(whole(moved, (0, None), (4, 4)), X.roll(1, 0))


@four
def test_one_devices_part_goes_to_all():
    part = rows().global_tensor
    xm.collective_broadcast([part], 2)
    assert torch.equal(whole(part, (0, None), (4, 4)), X[[2, 2, 2, 2]])


@four
def test_whole_tensors_are_left_to_xla():
    rows()
    x = X.to("xla")
    xs.mark_sharding(x, line(), (0, None))
    assert torch.equal(xm.all_reduce(xm.REDUCE_SUM, x).cpu(), X)


@four
def test_groups_of_parts_are_numbers_of_devices_along_the_mesh():
    part = rows()
    with pytest.raises(ArgumentError, match="all_reduce: rank 4 is not a rank"):
        xm.all_reduce(xm.REDUCE_SUM, part, groups=[[0, 4], [1, 2, 3]])
    with pytest.raises(ShardingError, match=r"groups \[\[0, 3\], \[1, 2\]\] do not lie along axes"):
        xm.all_gather(part, groups=[[0, 3], [1, 2]])
    with pytest.raises(ArgumentError, match="rank 0 is source of several pairs"):
        xm.collective_permute(part, [[0, 1], [0, 2]])
