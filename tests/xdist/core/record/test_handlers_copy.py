"""Operators that copy: what torch names `*_copy` and does not take apart by itself."""

import os
import subprocess
import sys
import textwrap

import pytest
import torch
from devices_agree import served_by_cpu

import torch_xla
from torch_xdist.core.run.device_trace import HERE

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
        lambda x: ATEN.as_strided_copy.default(x[1:], [2, 2], [1, 3]),
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


MADE = {
    "zeros_like": lambda x, where: torch.zeros_like(x, device=where),
    "full_like": lambda x, where: torch.full_like(x, 3.0, device=where),
    "randint_like": lambda x, where: torch.randint_like(x, 5, device=where),
    "new_zeros": lambda x, where: x.new_zeros(3, device=where),
    "new_full": lambda x, where: x.new_full((3,), 2.0, dtype=torch.int32, device=where),
    "new_tensor": lambda x, where: x.new_tensor([1.0], device=where),
}


def rows_of_casts(*sources):
    """The plans of the rows that casts to bfloat16 are, and what they give on the CPU."""
    torch_xla.sync()
    cast = [source.to(torch.bfloat16) for source in sources]
    plans = [row[0] for row in HERE.trace.rows if row[0].name == "aten._to_copy.default"]
    return plans, [one.cpu() for one in cast]


def test_casts_have_one_plan_and_are_right_of_views_too():
    x = torch.randn(6, 4)
    mine = x.to("xla")
    plans, found = rows_of_casts(mine, mine, mine + 0, mine[2:], mine[3:5], mine.t())
    expected = [x, x, x, x[2:], x[3:5], x.t()]
    assert all(torch.equal(a, b.to(torch.bfloat16)) for a, b in zip(found, expected, strict=True))
    assert len(plans) == 6 and len({*plans[:3]}) == 1
    assert rows_of_casts(mine)[0] == plans[:1]


def test_a_cast_of_a_tensor_that_was_written_has_what_was_written():
    mine = torch.zeros(3, device="xla")
    mine.to(torch.float16)
    mine[1:] += 2
    assert mine.to(torch.float16).tolist() == [0, 2, 2]
    mine.data = torch.ones(3, device="xla")
    assert mine.to(torch.float16).tolist() == [1, 1, 1]


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_what_is_made_after_a_tensor_may_be_elsewhere(make):
    mine, plain = torch.ones(3, 2).to("xla"), torch.ones(3, 2)
    torch.manual_seed(0)
    found = make(mine, "cpu")
    torch.manual_seed(0)
    expected = make(plain, "cpu")
    assert found.device.type == "cpu" and torch.equal(found, expected)
    assert found.dtype is expected.dtype
    assert make(mine, "meta").is_meta
    assert make(mine, "xla").device == make(plain, "xla").device == mine.device


ON_ANOTHER = """
    import torch, torch_xla
    x = torch.ones(2, device="xla:0")
    made = torch.full_like(x, 5.0, device="xla:1")
    assert made.device == torch.device("xla:1") and made.tolist() == [5, 5]
    assert torch.zeros_like(x).device == x.device
"""


@pytest.mark.on_cpu
def test_what_is_made_after_a_tensor_may_be_on_another_of_the_devices():
    code, env = textwrap.dedent(ON_ANOTHER), {**os.environ, "CPU_NUM_DEVICES": "2"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, timeout=200)
    assert done.returncode == 0, done.stderr
