"""Tensors sharded alike, in pairs."""

import numpy as np
import torch
from spmd_process import SpmdProcess

import torch_xla
import torch_xla.distributed.spmd as xs

four = SpmdProcess(4)
spec_of = torch_xla._XLAC._get_xla_sharding_spec


def pairs():
    """Two pairs in one program: one divided along dim 0, one along dim 1."""
    rows, columns = torch.ones(8, 8).to("xla"), torch.ones(8, 8).to("xla")
    mesh = xs.Mesh(np.arange(4), (4,), ("x",))
    xs.mark_sharding(rows, mesh, ("x", None))
    xs.mark_sharding(columns, mesh, (None, "x"))
    return [xs.shard_as(x, torch.zeros(8, 8).to("xla")) for x in (rows, columns)]


@four
def test_each_pair_of_a_program_is_cut_in_its_own_way():
    one, two = pairs()
    torch_xla.sync()
    assert [spec_of(tensor) for tensor in one] == ["{devices=[4,1]0,1,2,3}"] * 2
    assert [spec_of(tensor) for tensor in two] == ["{devices=[1,4]0,1,2,3}"] * 2
    assert [tensor.sum().item() for tensor in (*one, *two)] == [64, 0, 64, 0]


@four
def test_a_pair_can_be_printed_as_hlo():
    one, _ = pairs()
    text = torch_xla._XLAC._get_xla_tensors_hlo(list(one))
    assert text.startswith("HloModule") and "f32[8,8]" in text
