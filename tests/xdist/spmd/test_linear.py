"""Linear layers whose dims keep their shardings."""

import copy

import pytest
import torch
from torch import nn

import torch_xla
from torch_xla.distributed.spmd import XLAPatchedLinear


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_patched_layer_gives_what_a_layer_of_the_cpu_gives(dtype, bias):
    layer, x = nn.Linear(2, 4, bias=bias, dtype=dtype), torch.randn(4, 3, 2, dtype=dtype)
    there = copy.deepcopy(layer).to("xla"), x.to("xla").requires_grad_()
    here = layer(x.requires_grad_())
    found = XLAPatchedLinear.apply(there[1], there[0].weight, there[0].bias)
    torch.testing.assert_close(found.cpu(), here)
    here.sum().backward()
    found.sum().backward()
    torch.testing.assert_close(there[1].grad.cpu(), x.grad)
    for mine, theirs in zip(there[0].parameters(), layer.parameters()):
        torch.testing.assert_close(mine.grad.cpu(), theirs.grad)


def test_a_product_flattens_no_dims():
    x, weight = torch.ones(4, 3, 2).to("xla"), torch.ones(5, 2).to("xla").requires_grad_()
    out = XLAPatchedLinear.apply(x, weight, None)
    assert "f32[4,3,5]{2,1,0} dot(" in torch_xla._XLAC._get_xla_tensors_hlo([out.detach()])
    out.sum().backward()
    hlo = torch_xla._XLAC._get_xla_tensors_hlo([weight.grad])
    assert "lhs_contracting_dims={0,1}, rhs_contracting_dims={0,1}" in hlo
