"""Two tensors sharded alike, by JAX's own function and without it."""

import numpy as np
import torch
from spmd_process import SpmdProcess

import torch_xla
import torch_xla.distributed.spmd as xs
from torch_xdist.spmd import alike

four = SpmdProcess(4)
spec_of = torch_xla._XLAC._get_xla_sharding_spec


@four
def test_each_pair_is_cut_alike_where_jax_has_no_function_for_it():
    usual, alike.shard_alike = alike.shard_alike, None
    try:
        rows, columns = torch.ones(8, 8).to("xla"), torch.ones(8, 8).to("xla")
        mesh = xs.Mesh(np.arange(4), (4,), ("x",))
        xs.mark_sharding(rows, mesh, ("x", None))
        xs.mark_sharding(columns, mesh, (None, "x"))
        one = xs.shard_as(rows, torch.zeros(8, 8).to("xla"))
        two = xs.shard_as(columns, torch.zeros(8, 8).to("xla"))
        torch_xla.sync()
    finally:
        alike.shard_alike = usual
    assert [spec_of(tensor) for tensor in one] == ["{devices=[4,1]0,1,2,3}"] * 2
    assert [spec_of(tensor) for tensor in two] == ["{devices=[1,4]0,1,2,3}"] * 2
    assert [tensor.sum().item() for tensor in (*one, *two)] == [64, 0, 64, 0]
