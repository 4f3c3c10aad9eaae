"""Marks of intermediate tensors, of pairs, and of what a loader gives."""

import numpy as np
import pytest
import torch
from spmd_process import SpmdProcess

import torch_xla
import torch_xla.distributed.parallel_loader as pl
import torch_xla.distributed.spmd as xs
from torch_xdist.errors import ShardingError
from torch_xdist.spmd import annotations, marks

four = SpmdProcess(4)
plain = SpmdProcess(4, spmd=False)
spec_of = torch_xla._XLAC._get_xla_sharding_spec
CUT = "{devices=[4,1]0,1,2,3}"


def row():
    return xs.Mesh(np.arange(4), (4,), ("x",))


@four
def test_a_marked_intermediate_and_its_gradient_are_cut():
    x = torch.arange(32.0).reshape(8, 4)
    there = x.to("xla").requires_grad_()
    marked = xs.mark_sharding_with_gradients(there, row(), ("x", None))
    assert spec_of(marked) == CUT
    ((marked * 2) ** 2).sum().backward()
    here = x.requires_grad_()
    ((here * 2) ** 2).sum().backward()
    assert spec_of(there.grad) == CUT
    assert torch.equal(there.grad.cpu(), here.grad)


@four
def test_a_copy_is_marked_and_the_tensor_is_not():
    x = torch.ones(8, 4).to("xla")
    y = xs.mark_sharding_with_gradients(x, row(), ("x", None))
    torch_xla.sync()
    assert spec_of(y) == CUT
    assert x.value.buffer.placed.sharding.is_fully_replicated


@four
def test_a_copy_lies_as_what_it_is_a_copy_of():
    x = torch.ones(8, 4).to("xla")
    xs.mark_sharding(x, row(), ("x", None))
    assert spec_of(x.clone()) == CUT
    y = x * 2
    xs.mark_sharding(y, row(), ("x", None))
    assert spec_of(y.clone()) == CUT
    assert spec_of(y + 1) == ""


@four
def test_reading_what_lies_how_runs_nothing():
    y = torch.ones(8, 4).to("xla") * 2
    xs.mark_sharding(y, row(), ("x", None))
    xs.wrap_if_sharded(y)
    assert y.value.buffer is None


@four
def test_two_tensors_are_cut_alike():
    x = torch.ones(8, 4).to("xla")
    xs.mark_sharding(x, row(), ("x", None))
    tree, other = {"a": x, "none": None}, {"a": torch.zeros(8, 4).to("xla"), "none": None}
    (one, two) = xs.shard_as(tree, other)
    torch_xla.sync()
    assert one["none"] is two["none"] is None
    assert spec_of(one["a"]) == spec_of(two["a"]) == CUT
    with pytest.raises(AssertionError, match="shard_as: a and b must have the same structure"):
        xs.shard_as([x], (x, x))


@four
def test_only_a_tensor_whose_sharding_is_known_is_wrapped():
    x = torch.ones(8, 4).to("xla")
    assert xs.wrap_if_sharded(x) is x
    assert xs.wrap_if_sharded(3) == 3
    xs.mark_sharding(x, row(), ("x", None))
    assert isinstance(xs.wrap_if_sharded(x), xs.XLAShardedTensor)


@four
def test_a_pending_tensor_is_what_it_was_when_its_mark_is_cleared():
    y = torch.ones(8, 4).to("xla") * 2
    xs.mark_sharding(y, row(), ("x", None))
    xs.clear_sharding(y)
    assert y.value.buffer is None
    assert spec_of(y) == ""
    xs.clear_sharding(y)
    assert y.sum().item() == 64


@four
def test_a_tensor_that_is_cut_is_cut_in_another_way_from_here_on():
    x = torch.arange(16.0).reshape(4, 4).to("xla")
    xs.mark_sharding(x, row(), ("x", None))
    xs.annotate_custom_sharding(x, xs.Mesh(np.arange(4), (2, 2)), (1, 0))
    assert spec_of(x) == "{devices=[2,2]0,2,1,3}"
    torch_xla.sync()
    assert spec_of(x) == "{devices=[2,2]0,2,1,3}"
    assert x.cpu().sum() == 120


@four
def test_a_view_is_marked_where_it_lies():
    x = torch.zeros(8, 4).to("xla")
    x[:4].add_(1)
    xs.mark_sharding(x[:4], row(), ("x", None))
    assert x.sum().item() == 16


@four
def test_a_tensor_of_the_host_is_not_marked():
    with pytest.raises(ShardingError, match=r"Input tensor is not an XLA tensor: .* on cpu; move"):
        xs.mark_sharding(torch.ones(4), row(), ("x",))


@plain
def test_marks_need_spmd_mode():
    x = torch.ones(4).to("xla")
    assert spec_of(x) == ""
    with pytest.raises(ShardingError, match=r"xla:0 is one device of 4; call .*use_spmd\(\) first"):
        marks.layout("mark_sharding")
    with pytest.raises(ShardingError, match="mark_sharding: xla:0 is one device of 4"):
        xs.mark_sharding(x, row(), ("x",))


@four
def test_a_text_of_no_mesh_is_an_error():
    with pytest.raises(ShardingError, match="aot_mark_sharding: 'none' is the text of no mesh"):
        annotations._aot_mark_sharding(torch.ones(4).to("xla"), "none", "(0,)")


@four
def test_a_sharding_that_is_known_is_wrapped_learned_and_unwrapped():
    x = torch.arange(8.0).to("xla")
    wrapped = xs.xla_sharding.wrap_as_sharded_tensor(x, (4,), (0,))
    assert isinstance(wrapped, xs.XLAShardedTensor) and wrapped.global_tensor is x
    assert (wrapped.mesh_shape, wrapped.partition_spec) == ((4,), (0,))
    assert [p.dim for p in wrapped.placements] == [0]
    again = xs.xla_sharding.wrap_as_sharded_tensor(wrapped, partition_spec=(None,))
    # What DTensor was told before is forgotten.
    assert again is wrapped and wrapped.placements[0].is_replicate()
    assert wrapped.mesh_shape == (4,)
    assert xs.xla_sharding.unwrap_sharded_tensor(wrapped) is x
    assert xs.xla_sharding.unwrap_sharded_tensor(x) is x


@four
def test_the_function_behind_marks_with_gradients_has_a_fake_form():
    x = torch.ones(8, 4).to("xla").requires_grad_()
    found = xs.MarkShardingFunction.apply(x, row(), ("x", None))
    assert spec_of(found) == CUT
    (found * 3).sum().backward()
    assert spec_of(x.grad) == CUT and x.grad.unique().tolist() == [3]
    fake = xs.xla_sharding.aot_mark_sharding_fake(torch.ones(2, 3).half(), str(row()), "(0, None)")
    assert fake.shape == (2, 3) and fake.dtype == torch.float16


@four
def test_a_spec_of_a_loader_fits_tensors_with_as_many_dims():
    spec = xs.ShardingSpec(row(), ("x", None), minibatch=True)
    assert spec.can_apply(torch.ones(4, 4)) and not spec.can_apply(torch.ones(4))
    assert spec.xla_spec(torch.ones(4)) is None
    found = spec.xla_spec(torch.ones(4, 4))
    assert (repr(found.sharding), found.minibatch) == (CUT, True)
    with pytest.raises(RuntimeError, match="batch size must be divisible by local runtime device"):
        spec.apply(torch.ones(6, 4).to("xla"))


def batches(**options):
    loader = [{"x": torch.ones(8, 4), "y": torch.ones(8)}]
    (batch,) = pl.MpDeviceLoader(loader, torch_xla.device(), **options)
    return batch


@four
def test_a_loader_cuts_the_batches_by_one_spec_or_by_key():
    spec = xs.ShardingSpec(row(), ("x", None))
    batch = batches(input_sharding=spec)
    assert spec_of(batch["x"]) == CUT
    assert batch["y"].sum().item() == 8
    keys = {"x": spec, "y": xs.ShardingSpec(row(), ("x",))}
    assert spec_of(batches(input_sharding=keys)["y"]) == "{devices=[4]0,1,2,3}"


@four
def test_a_loader_without_a_spec_brings_the_batches_to_every_device():
    batch = batches()
    assert spec_of(batch["x"]) == "{replicated}"
