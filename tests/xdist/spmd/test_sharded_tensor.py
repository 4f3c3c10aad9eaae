"""`XLAShardedTensor`: its parts on each device, and what DTensor says of it."""

import numpy as np
import pytest
import torch
from spmd_process import SpmdProcess
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Partial, Replicate, Shard

import torch_xla.distributed.spmd as xs
from torch_xdist.errors import ShardingError
from torch_xla.distributed.spmd.xla_sharded_tensor import no_dispatch

four = SpmdProcess(4)


def marked(tensor, shape, spec):
    return xs.mark_sharding(tensor.to("xla"), xs.Mesh(np.arange(4), shape), spec)


@four
def test_the_parts_of_a_tiled_tensor_tell_where_they_lie():
    whole = torch.arange(16.0).reshape(4, 4)
    shards = marked(whole, (2, 2), (0, 1)).local_shards
    assert [shard.shard_device for shard in shards] == [f"CPU:{n}" for n in range(4)]
    for shard in shards:
        assert torch.equal(shard.data, whole[tuple(shard.indices)])
        assert (shard.data.device.type, shard.replica_id) == ("cpu", 0)


@four
def test_the_parts_of_a_partly_replicated_tensor_tell_which_copy_they_are():
    shards = marked(torch.arange(8.0), (2, 2), (1,)).local_shards
    assert [shard.replica_id for shard in shards] == [0, 0, 1, 1]
    assert [shard.data.tolist()[0] for shard in shards] == [0, 4, 0, 4]


@four
def test_the_parts_of_a_replicated_tensor_are_all_of_it():
    shards = marked(torch.arange(3.0), (4,), (None,)).local_shards
    assert [shard.indices for shard in shards] == [Ellipsis] * 4
    assert [shard.replica_id for shard in shards] == [0, 1, 2, 3]
    assert shards[2].unpadded_data.tolist() == [0, 1, 2]


@four
def test_uneven_parts_have_padding_that_is_not_part_of_the_tensor():
    shards = marked(torch.arange(5.0) + 1, (4,), (0,)).local_shards
    assert [shard.data.tolist() for shard in shards] == [[1, 2], [3, 4], [5, 0], [0, 0]]
    assert [shard.unpadded_data.tolist() for shard in shards] == [[1, 2], [3, 4], [5], []]
    shards[2].unpadded_data = torch.tensor([9.0])
    assert shards[2].data.tolist() == [9, 0]


@four
def test_parts_are_written_back():
    tensor = marked(torch.arange(6.0), (4,), (0,))
    shards = tensor.local_shards
    for shard in shards:
        shard.data *= -1
    tensor.load_local_shards_(shards)
    assert tensor.cpu().tolist() == [0, -1, -2, -3, -4, -5]
    assert tensor.sharding_spec == "{devices=[4]0,1,2,3}"


@four
def test_parts_that_do_not_fit_are_not_written_back():
    tensor = marked(torch.arange(8.0), (4,), (0,))
    shards = tensor.local_shards
    with pytest.raises(ShardingError, match="3 shards for 4 local devices; give one for each"):
        tensor.load_local_shards_(shards[:3])
    shards[1].data = torch.ones(3)
    with pytest.raises(ShardingError, match=r"shard 1 has shape \[3\]; .* has shards of \[2\]"):
        tensor.load_local_shards_(shards)
    whole = marked(torch.arange(8.0), (4,), (None,))
    with pytest.raises(RuntimeError, match="is not sharded, so every device holds all of it"):
        whole.load_local_shards_(whole.local_shards)


@four
def test_operators_on_it_compute_on_the_whole_tensor_and_give_another():
    tensor = marked(torch.arange(8.0), (4,), (0,))
    result = (tensor + 1).sum()
    assert isinstance(result, xs.XLAShardedTensor) and isinstance(result, DTensor)
    assert result.global_tensor.item() == 36
    assert "XLAShardedTensor(tensor(36.," in repr(result)
    assert (tensor.device, tensor.is_xla) == (torch.device("xla:0"), True)


@four
def test_it_has_gradients():
    tensor = xs.XLAShardedTensor(torch.ones(4, 4).to("xla"), requires_grad=True)
    (tensor * 3).sum().backward()
    assert tensor.grad.cpu().tolist() == torch.full((4, 4), 3.0).tolist()


@four
def test_it_tells_its_placements_as_dtensor_does():
    tensor = marked(torch.ones(4, 4), (2, 2), (None, 0))
    assert tensor.placements == (Shard(1), Replicate())
    assert tensor._spec is tensor._spec
    assert tuple(tensor._spec.tensor_meta.shape) == (4, 4)


@four
def test_axes_that_cut_a_dim_together_or_by_name_are_placements():
    mesh = xs.Mesh(np.arange(4), (2, 2), ("a", "b"))
    both = xs.mark_sharding(torch.ones(4, 4).to("xla"), mesh, (None, (0, 1)))
    assert both.placements == (Shard(1), Shard(1))
    named = xs.mark_sharding(torch.ones(4, 4).to("xla"), mesh, ("b", None))
    assert named.placements == (Replicate(), Shard(0))
    part = xs.enable_manual_sharding(torch.ones(4, 4).to("xla"), ("b", "a"), mesh=mesh)
    assert part.placements == (Shard(1), Shard(0))


@four
def test_a_name_that_no_mesh_explains_is_no_placement():
    tensor = xs.XLAShardedTensor(torch.ones(4).to("xla"), (4,), ("x",))
    with pytest.raises(ValueError, match=r"axis x of \('x',\) is not one of \(\)"):
        tensor._spec  # noqa: B018


@four
def test_it_is_distributed_anew_in_place():
    tensor = marked(torch.arange(16.0).reshape(4, 4), (4,), (0, None))
    again = tensor.redistribute(xs.Mesh(np.arange(4), (4,)), [Shard(1)])
    assert again.global_tensor is tensor.global_tensor
    assert again.sharding_spec == "{devices=[1,4]0,1,2,3}"
    assert again.placements == (Shard(1),)
    assert torch.equal(again.cpu(), torch.arange(16.0).reshape(4, 4))


@four
def test_a_result_of_an_operator_has_no_placements():
    result = marked(torch.ones(4), (4,), (0,)) + 1
    with pytest.raises(ValueError, match="Placements not available: XLAShardedTensor requires"):
        result.placements  # noqa: B018
    with pytest.raises(ValueError, match="mesh_shape must be specified to create DTensorSpec"):
        result._spec  # noqa: B018


@four
def test_it_is_distributed_anew():
    tensor = marked(torch.arange(16.0).reshape(4, 4), (4,), (0, None))
    mesh = xs.Mesh(np.arange(4), (2, 2))
    again = tensor.redistribute(mesh, [Shard(1), Replicate()], async_op=True)
    assert again.sharding_spec == "{devices=[1,2,2]0,1,2,3 last_tile_dim_replicate}"
    assert tensor.sharding_spec == "{devices=[4,1]0,1,2,3}"
    assert torch.equal(again.cpu(), tensor.cpu())


PLACEMENTS = {
    "few": ([Shard(0)], ValueError, r"Number of placements \(1\) must match mesh dimensions \(2\)"),
    "partial": ([Partial(), Shard(0)], NotImplementedError, "Partial placement is not yet implem"),
    "dim": ([Shard(2), Shard(0)], IndexError, "Shard dimension 2 is out of bounds for tensor wit"),
}


@pytest.mark.parametrize(("placements", "error", "words"), PLACEMENTS.values(), ids=PLACEMENTS)
@four
def test_placements_that_cannot_be_are_errors(placements, error, words):
    tensor = marked(torch.ones(4, 4), (2, 2), (0, 1))
    with pytest.raises(error, match=words):
        tensor.redistribute(xs.Mesh(np.arange(4), (2, 2)), placements)


@four
def test_a_spec_that_is_kept_is_forgotten_when_told():
    tensor = marked(torch.arange(8.0), (2, 2), (0,))
    assert tensor.placements == (Shard(0), Replicate())
    tensor.partition_spec = (1,)
    assert tensor.placements == (Shard(0), Replicate())
    tensor.invalidate_spec_cache()
    assert tensor.placements == (Replicate(), Shard(0))


@four
def test_parts_of_ones_own_are_loaded():
    tensor = marked(torch.zeros(6), (4,), (0,))
    tensor.load_local_shards_(
        [
            xs.XLAShard(torch.tensor(data), [slice(2 * n, 2 * n + 2, 1)], f"CPU:{n}", 0)
            for n, data in enumerate([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [0.0, 0.0]])
        ]
    )
    assert tensor.cpu().tolist() == [1, 2, 3, 4, 5, 6]


@four
def test_parts_of_another_dtype_are_not_written_back():
    tensor = marked(torch.zeros(4), (4,), (0,))
    shards = tensor.local_shards
    shards[2].data = torch.ones(1, dtype=torch.int64)
    with pytest.raises(ShardingError, match=r"shard 2 is torch.int64, and shard 0 is torch.float"):
        tensor.load_local_shards_(shards)
    for shard in shards:
        shard.data = torch.ones(1, dtype=torch.int64)
    with pytest.raises(ShardingError, match=r"the shards are torch.int64, and the tensor is torc"):
        tensor.load_local_shards_(shards)
    assert tensor.cpu().tolist() == [0, 0, 0, 0]


@four
def test_without_dispatch_the_wrapper_is_a_plain_tensor():
    tensor = marked(torch.arange(4.0), (4,), (0,))
    with no_dispatch():
        alias = tensor.detach()
    assert type(alias) is not xs.XLAShardedTensor or alias.shape == (4,)
    assert (tensor + 1).global_tensor.tolist() == [1, 2, 3, 4]
