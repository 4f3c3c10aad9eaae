"""Meshes in another order than the devices' numbers, or than that of the first mesh."""

import numpy as np
import pytest
import torch
from spmd_process import SpmdProcess

import torch_xla
import torch_xla.distributed.spmd as xs
from torch_xdist import metrics
from torch_xdist.errors import ShardingError

four = SpmdProcess(4)
six = SpmdProcess(6)
turned = SpmdProcess(4)
_XLAC = torch_xla._XLAC


def forward(*shape):
    return xs.Mesh(np.arange(np.prod(shape)), shape)


def reverse(*shape):
    return xs.Mesh(np.arange(np.prod(shape))[::-1], shape)


def in_turned_order():
    """The mesh that is the first one of the process `turned`."""
    xs.mark_sharding(torch.ones(4).to("xla"), reverse(4), (0,))
    return reverse(4)


def doubled_by_parts(whole, mesh, spec):
    """A marked tensor each of whose parts was read, checked, doubled and written back."""
    tensor = xs.mark_sharding(whole.to("xla"), mesh, spec)
    shards = tensor.local_shards
    for shard in shards:
        index = shard.indices if shard.indices is Ellipsis else tuple(shard.indices)
        assert torch.equal(shard.unpadded_data, whole[index])
        shard.data = shard.data * 2
    tensor.load_local_shards_(shards)
    return tensor


@turned
def test_a_mark_that_was_recorded_before_the_first_mesh_is_kept():
    pending = torch.arange(8.0).to("xla") * 2
    _XLAC._xla_mark_sharding(pending, reverse(4).get_op_sharding((0,)))
    marked = torch.arange(8.0).to("xla")
    xs.mark_sharding(marked, reverse(4), (0,))
    assert (pending + marked).tolist() == [0, 3, 6, 9, 12, 15, 18, 21]


@turned
def test_each_device_holds_the_part_that_the_first_mesh_says():
    tensor = xs.mark_sharding(torch.arange(4.0).to("xla"), in_turned_order(), (0,))
    found = {shard.shard_device: shard.data.tolist() for shard in tensor.local_shards}
    assert found == {"CPU:3": [0], "CPU:2": [1], "CPU:1": [2], "CPU:0": [3]}
    assert metrics.counter_value("SpmdOtherOrder") is None


@turned
def test_parts_are_read_and_written_back_in_the_order_of_the_first_mesh():
    in_turned_order()
    whole = torch.arange(5.0)
    assert torch.equal(doubled_by_parts(whole, reverse(4), (0,)).cpu(), whole * 2)


@pytest.mark.parametrize("groups", [[], [[0, 1, 2, 3]], [[3, 2, 1, 0]]])
@turned
def test_parts_are_summed_over_all_devices_in_whatever_order_they_are_named(groups):
    mesh = in_turned_order()
    part = xs.enable_manual_sharding(torch.arange(4.0).to("xla"), (0,), mesh=mesh)
    total = _XLAC._xla_spmd_all_reduce("sum", part, 1.0, groups)
    whole = xs.disable_manual_sharding(total, (0,), (4,), mesh=mesh)
    assert whole.cpu().tolist() == [6, 6, 6, 6]


@turned
def test_the_members_of_a_group_are_the_devices_with_these_numbers():
    mesh = in_turned_order()
    part = xs.enable_manual_sharding(torch.arange(4.0).to("xla"), (0,), mesh=mesh)
    pairs = _XLAC._xla_spmd_all_reduce("sum", part, 1.0, [[0, 1], [2, 3]])
    whole = xs.disable_manual_sharding(pairs, (0,), (4,), mesh=mesh)
    assert whole.cpu().tolist() == [1, 1, 5, 5]


@turned
def test_a_reduction_is_divided_in_the_order_of_the_mesh():
    mesh = in_turned_order()
    scatter = _XLAC._xla_spmd_reduce_scatter
    part = xs.enable_manual_sharding(torch.arange(16.0).to("xla"), (0,), mesh=mesh)
    with pytest.raises(ShardingError, match=r"\[\[0, 1, 2, 3\]\] do not lie along axes of the mes"):
        scatter("sum", part, 1.0, 0, 4, [])
    piece = scatter("sum", part, 1.0, 0, 4, [[3, 2, 1, 0]])
    whole = xs.disable_manual_sharding(piece, (0,), (4,), mesh=mesh)
    assert whole.cpu().tolist() == [24, 28, 32, 36]


CUTS = {
    "tiled": ((4,), (0,), (8,)),
    "partial": ((2, 2), (0, None), (4, 3)),
    "uneven": ((2, 2), (1, 0), (5, 3)),
}


@pytest.mark.parametrize(("mesh", "spec", "shape"), CUTS.values(), ids=CUTS)
@four
def test_parts_come_back_where_a_later_mesh_has_another_order(mesh, spec, shape):
    xs.mark_sharding(torch.ones(4).to("xla"), forward(4), (0,))
    whole = torch.arange(float(np.prod(shape))).reshape(shape)
    tensor = doubled_by_parts(whole, reverse(*mesh), spec)
    assert torch.equal(tensor.cpu(), whole * 2)


@pytest.mark.parametrize("shape", [(6, 4), (5, 3)])
@six
def test_parts_come_back_where_a_later_mesh_has_other_factors(shape):
    xs.mark_sharding(torch.ones(2, 3).to("xla"), forward(2, 3), (0, 1))
    whole = torch.arange(float(np.prod(shape))).reshape(shape)
    tensor = doubled_by_parts(whole, forward(3, 2), (0, 1))
    tensor.global_tensor.add_(1)
    torch_xla.sync()
    assert torch.equal(tensor.cpu(), whole * 2 + 1)


@six
def test_sharding_by_hand_needs_the_order_and_the_factors_of_the_first_mesh():
    xs.mark_sharding(torch.ones(2, 3).to("xla"), forward(2, 3), (0, 1))
    for mesh, spec in [
        (reverse(2, 3), (0, 1)),
        (forward(3, 2), (0, 1)),
        (forward(3, 2), (1, None)),
    ]:
        told = (
            r"does not lie along axes of the first mesh .* factors are \[2, 3\] and whose devices"
        )
        with pytest.raises(ShardingError, match=told):
            xs.enable_manual_sharding(torch.ones(6, 6).to("xla"), spec, mesh=mesh)
    part = xs.enable_manual_sharding(torch.ones(6, 6).to("xla"), (0, 1), mesh=forward(2, 3))
    with pytest.raises(
        ShardingError, match=r"disable_manual_sharding: the sharding .* does not lie"
    ):
        xs.disable_manual_sharding(part, (1, 0), (6, 6), mesh=forward(3, 2))
