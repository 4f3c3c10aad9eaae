"""Permuted stacks are written once, where their parts end up."""

import pytest
import torch

import torch_xla
from torch_xdist.core.devices import device as devices_here
from torch_xdist.core.rows import permuted_stacks
from torch_xdist.core.trace.trace import rows_of

WAYS = {
    "the first dimension": (0, (1, 3, 0, 2, 4)),
    "one in between": (2, (2, 0, 1, 4, 3)),
    "counted from the end": (-1, (-1, 0, -2, 1, 2)),
}


def parts(device):
    torch.manual_seed(0)
    return [torch.randn(2, 3, 4, 5).to(device) for _ in range(3)]


@pytest.mark.parametrize("dim, dims", WAYS.values(), ids=WAYS)
def test_the_values_are_torchs(dim, dims):
    def permuted(device):
        stack = torch.stack(parts(device), dim)
        return stack.permute(dims) * 2, stack

    for got, expected in zip(permuted("xla"), permuted("cpu")):
        torch.testing.assert_close(got.cpu(), expected)


def changed(make):
    """The names of a call's rows that are others afterwards, and how many plans they have."""
    torch_xla.sync()
    kept = make(parts("xla"))
    entries = devices_here.trace_of(devices_here.default_index()).tape.entries
    after = rows_of(permuted_stacks.by_parts(entries))
    plans = [row[0] for (_, row), (_, was) in zip(after, rows_of(entries)) if row is not was]
    del kept
    return [plan.name for plan in plans], len({*plans})


def test_equal_ones_are_of_one_plan():
    def twice(xs):
        return [torch.stack([x * k for x in xs]).permute(1, 3, 0, 2, 4) + 1 for k in (2, 3)]

    assert changed(twice) == (["permuted stack"] * 2, 1)


def test_what_is_no_stack_or_no_permute_stays():
    assert changed(lambda xs: [torch.cat(xs).permute(3, 0, 1, 2), torch.stack(xs)]) == ([], 0)


def test_the_program_has_no_transpose_of_the_whole():
    stack = torch.stack(parts("xla")).permute(1, 3, 0, 2, 4)
    text = str(torch_xla._XLAC._get_xla_tensors_hlo([stack]))
    assert "transpose" in text and "[3,2,3,4,5]" not in text
