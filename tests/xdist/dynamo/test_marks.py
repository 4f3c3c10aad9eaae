"""Tensors that are sharded inside a captured graph."""

import pytest
import torch
from spmd_process import SpmdProcess

from torch_xdist.errors import ShardingError
from torch_xla import _XLAC
from torch_xla._internal.custom_kernel import dynamo_mark_sharding_xla

four = SpmdProcess(4)


@four
def test_an_input_is_sharded_at_every_call():
    def double(x):
        marked = torch.ops.xla.dynamo_mark_sharding(x, [0, 1, 2, 3], [4], "('x',)", "('x', None)")
        return marked * 2

    compiled = torch.compile(double, backend="openxla")
    for _ in range(2):
        x = torch.ones(8, 4).to("xla")
        assert compiled(x).tolist() == [[2.0] * 4] * 8
        assert _XLAC._get_xla_sharding_spec(x) == "{devices=[4,1]0,1,2,3}"


@four
def test_a_tensor_of_the_device_is_sharded_by_texts():
    x = torch.ones(8, 4).to("xla")
    mesh = [0, 1, 2, 3], [2, 2], "('data', 'model')"
    assert dynamo_mark_sharding_xla(x, *mesh, "(None, ('data', 'model'))") is x
    assert _XLAC._get_xla_sharding_spec(x) == "{devices=[1,4]0,1,2,3}"
    with pytest.raises(ShardingError, match="dynamo_mark_sharding"):
        dynamo_mark_sharding_xla(torch.ones(8).to("xla"), *mesh, "('data', 'model')")
