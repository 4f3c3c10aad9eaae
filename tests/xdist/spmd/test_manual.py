"""Sharding by hand: each device computes on its own part."""

import numpy as np
import pytest
import torch
from spmd_process import SpmdProcess

import torch_xla
import torch_xla.distributed.spmd as xs
from torch_xdist.errors import ShardingError

four = SpmdProcess(4)
all_reduce = torch_xla._XLAC._xla_spmd_all_reduce
reduce_scatter = torch_xla._XLAC._xla_spmd_reduce_scatter


def mesh(*shape):
    return xs.Mesh(np.arange(4), shape)


def part_of(tensor, spec, on):
    return xs.enable_manual_sharding(tensor.to("xla"), spec, mesh=on).global_tensor


def whole_of(part, spec, shape, on):
    return xs.disable_manual_sharding(part, spec, shape, mesh=on).global_tensor


@four
def test_what_is_computed_on_the_parts_is_computed_on_the_whole():
    on = mesh(2, 2)
    x = torch.arange(32.0).reshape(8, 4)
    part = part_of(x, (0, 1), on)
    assert part.shape == (4, 2)
    assert torch_xla._XLAC._get_xla_sharding_spec(part) == "{manual}"
    assert torch.equal(whole_of(part * 2 + 1, (0, 1), (8, 4), on).cpu(), x * 2 + 1)


@four
def test_uneven_parts_are_padded_and_the_padding_is_dropped():
    on = mesh(4)
    part = part_of(torch.arange(5.0), (0,), on)
    assert part.shape == (2,)
    assert whole_of(part + 1, (0,), (5,), on).tolist() == [1, 2, 3, 4, 5]


@four
def test_parts_are_summed_over_all_devices_or_along_an_axis():
    on = mesh(2, 2)
    part = part_of(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), (0, 1), on)
    everywhere = all_reduce("sum", part, 0.5, [[0, 1, 2, 3]])
    rows = all_reduce("sum", part, 1.0, [[0, 1], [2, 3]])
    columns = all_reduce("max", part, 1.0, [[0, 2], [1, 3]])
    assert whole_of(everywhere, (None, None), (1, 1), on).tolist() == [[5]]
    assert whole_of(rows, (0, None), (2, 1), on).tolist() == [[3], [7]]
    assert whole_of(columns, (None, 1), (1, 2), on).tolist() == [[3, 4]]


@four
def test_parts_are_summed_and_divided():
    on = mesh(4)
    part = part_of(torch.ones(8, 4), (None, None), on)
    piece = reduce_scatter("sum", part, 1.0, 0, 4, [[0, 1, 2, 3]])
    assert piece.shape == (2, 4)
    assert torch.equal(whole_of(piece, (0, None), (8, 4), on).cpu(), torch.full((8, 4), 4.0))


@four
def test_a_part_lives_on_after_the_step():
    on = mesh(4)
    part = part_of(torch.arange(8.0), (0,), on) * 2
    torch_xla.sync()
    again = part + 1
    assert whole_of(again, (0,), (8,), on).tolist() == [2 * n + 1 for n in range(8)]


@four
def test_rows_of_the_whole_and_of_the_parts_take_turns():
    on = mesh(4)
    part = part_of(torch.arange(8.0), (0,), on)
    whole = whole_of(part + 1, (0,), (8,), on).cumsum(0)
    second = xs.enable_manual_sharding(whole, (0,), mesh=on).global_tensor + part
    result = whole_of(second, (0,), (8,), on)
    x = torch.arange(8.0)
    assert result.tolist() == ((x + 1).cumsum(0) + x).tolist()


@four
def test_random_rows_run_on_the_parts():
    on = mesh(4)
    part = part_of(torch.zeros(8), (0,), on)
    noisy = torch.nn.functional.dropout(part + 1, 0.5)
    values = whole_of(noisy, (0,), (8,), on).cpu()
    assert set(values.tolist()) <= {0.0, 2.0}


@four
def test_a_part_has_no_value_that_could_be_read():
    part = part_of(torch.arange(8.0), (0,), mesh(4))
    with pytest.raises(ShardingError, match=r"shape \[2\] is sharded by hand: each of 4 devices"):
        part.cpu()
    torch_xla.sync()
    with pytest.raises(ShardingError, match=r"pass it to xs\.disable_manual_sharding"):
        part.tolist()


@four
def test_the_whole_fits_its_parts():
    on = mesh(4)
    part = part_of(torch.arange(8.0), (0,), on)
    with pytest.raises(ShardingError, match=r"part has shape \[2\]; .* has parts of \[4\]"):
        whole_of(part, (0,), (16,), on)
    with pytest.raises(ShardingError, match="is not sharded by hand: manual sharding is expected"):
        whole_of(torch.ones(2).to("xla"), (0,), (8,), on)


@four
def test_collectives_by_hand_need_a_part():
    x = torch.ones(4).to("xla")
    with pytest.raises(ShardingError, match=r"_xla_spmd_all_reduce: a tensor of shape \[4\]"):
        all_reduce("sum", x, 1.0, [[0, 1, 2, 3]])
    with pytest.raises(RuntimeError, match="Sharding spec is not set on the tensor; mark it first"):
        torch_xla._XLAC._spmd_full_to_shard_shape(x)


@four
def test_a_pending_tensor_stands_for_each_devices_own_copy():
    x = torch.ones(3).to("xla")
    with pytest.raises(RuntimeError, match="_mark_manual_sharding: the tensor is computed already"):
        xs._mark_manual_sharding(x)
    y = x + 1
    marked = xs._mark_manual_sharding(y)
    assert marked.sharding_type == xs.ShardingType.MANUAL
    total = all_reduce("sum", marked.global_tensor, 1.0, [[0, 1, 2, 3]])
    assert whole_of(total, (None,), (3,), mesh(4)).tolist() == [8, 8, 8]


WHOLES = {
    "mark": lambda part: xs.mark_sharding(part, mesh(4), (0,)),
    "annotate": lambda part: xs.annotate_custom_sharding(part, mesh(4), (0,)),
    "clear": xs.clear_sharding,
    "shards": lambda part: xs.XLAShardedTensor(part).local_shards,
}


@pytest.mark.parametrize("act", WHOLES.values(), ids=WHOLES)
@pytest.mark.parametrize("is_computed", [False, True])
@four
def test_a_part_is_not_taken_for_a_whole_and_what_is_pending_still_runs(act, is_computed):
    on = mesh(4)
    part = part_of(torch.arange(8.0), (0,), on) * 2
    if is_computed:
        torch_xla.sync()
    with pytest.raises(ShardingError, match=r"shape \[2\] is sharded by hand: each of 4 devices"):
        act(part)
    assert whole_of(part, (0,), (8,), on).tolist() == [2 * n for n in range(8)]


@pytest.mark.parametrize("collective", [all_reduce, lambda *a: reduce_scatter(*a[:3], 0, 2, a[3])])
@four
def test_groups_that_lie_along_no_axis_are_refused_before_they_are_recorded(collective):
    on = mesh(2, 2)
    part = part_of(torch.arange(16.0), ((0, 1),), on)
    with pytest.raises(ShardingError, match=r"groups \[\[0, 3\], \[1, 2\]\] do not lie along axes"):
        collective("sum", part, 1.0, [[0, 3], [1, 2]])
    assert whole_of(part, ((0, 1),), (16,), on).tolist() == [*range(16)]


@four
def test_a_reduction_is_divided_among_the_members_of_each_group():
    on = mesh(2, 2)
    x = torch.arange(16.0).reshape(4, 4)
    part = part_of(x, (1, 0), on)
    piece = reduce_scatter("sum", part, 0.5, 0, 2, [[0, 2], [1, 3]])
    assert piece.shape == (1, 2)
    expected = (x[:, :2] + x[:, 2:]).reshape(2, 2, 2) / 2
    whole = whole_of(piece, ((1, 0), None), (4, 2), on)
    assert torch.equal(whole.cpu(), expected.reshape(4, 2))


@four
def test_a_group_has_as_many_pieces_as_members():
    part = part_of(torch.ones(16), (0,), mesh(4))
    with pytest.raises(ValueError, match="shard_count is 3, and the group has 4 ranks"):
        reduce_scatter("sum", part, 1.0, 0, 3, [])


@four
def test_what_is_written_to_a_part_is_part_of_the_whole():
    on = mesh(4)
    part = part_of(torch.zeros(4, 3), (0, None), on)
    part[:, 1] = 5
    part += 1
    assert whole_of(part, (0, None), (4, 3), on).tolist() == [[1, 6, 1]] * 4


@four
def test_a_tensor_that_every_device_has_is_the_same_on_each_part():
    on = mesh(4)
    part = part_of(torch.arange(8.0), (0,), on)
    again = part + torch.tensor([10.0, 20.0]).to("xla")
    expected = torch.arange(8.0) + torch.tensor([10.0, 20.0]).repeat(4)
    assert torch.equal(whole_of(again, (0,), (8,), on).cpu(), expected)
