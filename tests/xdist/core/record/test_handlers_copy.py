"""Operators that copy: what torch names `*_copy` and does not take apart by itself."""

import pytest
import torch
from devices_agree import served_by_cpu

import torch_xla

ATEN = torch.ops.aten


def complex_of(x):
    # torch has no gradients of these.
    return torch.complex(x.detach(), x.detach().flip(0))


@pytest.mark.parametrize(
    "copied",
    [
        lambda x: ATEN.select_copy.int(x, 0, 1),
        lambda x: ATEN.slice_copy.Tensor(x, 1, 1, 5, 2),
        lambda x: ATEN.split_copy.Tensor(x, 4, 1),
        lambda x: ATEN.lift_fresh_copy.default(x),
        lambda x: ATEN.detach_copy.default(x.detach()),
        lambda x: ATEN._neg_view_copy.default(x),
        lambda x: ATEN._reshape_alias_copy.default(x, [24], [1]),
        lambda x: ATEN._conj_copy.default(complex_of(x)),
        lambda x: ATEN.view_as_real_copy.default(complex_of(x)),
        lambda x: ATEN.view_as_complex_copy.default(x.detach().reshape(4, 3, 2)),
    ],
)
def test_a_copy_of_a_view_is_made_on_the_device(copied):
    assert served_by_cpu(copied, torch.randn(4, 6)) == []


def test_a_copy_of_a_view_has_memory_of_its_own():
    x = torch.zeros(4, 6, device="xla")
    row, *_ = ATEN.split_copy.Tensor(x, 2)
    row.add_(1)
    ATEN.select_copy.int(x, 0, 3).add_(1)
    torch_xla.sync()
    assert not x.any().item()
