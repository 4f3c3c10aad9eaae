"""What is remembered of numbers that came from the host."""

import gc
import weakref

import pytest
import torch

import torch_xla
from torch_xdist.core.devices import uploaded


def known(tensor):
    return uploaded.known(tensor.value)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8])
def test_integers_are_remembered(dtype):
    found = known(torch.tensor([3, -2, 5], dtype=dtype).to("xla"))
    assert found.bounds(None) == (-2, 5)


def test_few_floats_are_remembered():
    found = uploaded.of_buffer((tensor := torch.tensor([0.5, 2.0]).to("xla")).value.buffer)
    assert found is known(tensor) and found.array.tolist() == [0.5, 2.0]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(uploaded._MOST_FLOATS + 1),
        torch.ones(3, dtype=torch.complex64),
        torch.ones(3, dtype=torch.bfloat16),
        torch.ones(0, dtype=torch.int64),
        torch.ones(uploaded._MOST + 1, dtype=torch.int64),
        torch.ones(uploaded._MOST_TRUTHS + 1, dtype=torch.bool),
    ],
    ids=["floats", "complex", "narrow", "none", "many", "many truths"],
)
def test_nothing_else_is(tensor):
    assert known(tensor.to("xla")) is None


@pytest.mark.parametrize(
    ("numbers", "but", "expected"),
    [
        ([1, 2, 3], None, (1, 3)),
        ([1, 2, 3], 2, (1, 3)),
        ([-100, 2, 3], -100, (2, 3)),
        ([1, 2, 255], 255, (1, 2)),
        ([7, 7], 7, (0, 0)),
    ],
)
def test_bounds_leave_one_number_out(numbers, but, expected):
    found = known(torch.tensor(numbers).to("xla"))
    assert found.bounds(but) == expected == found.bounds(but)


def test_masks_are_remembered_by_their_buffers_too():
    mask = torch.tensor([True, False]).to("xla")
    found = uploaded.of_buffer(mask.value.buffer)
    assert found is known(mask) and found.array.tolist() == [True, False]
    assert known(torch.ones(uploaded._MOST + 1, dtype=torch.bool).to("xla")) is not None
    other = mask.clone()
    torch_xla.sync()
    assert uploaded.of_buffer(other.value.buffer) is None


def test_a_copy_in_another_dtype_is_not_known():
    target = torch.empty(3, dtype=torch.int64, device="xla")
    target.copy_(torch.tensor([1.0, 2.0, 3.0]))
    assert known(target).bounds(None) == (1, 3)
    assert known(target.to(torch.int32)) is None


def test_a_write_ends_it():
    x = torch.tensor([1, 2, 3]).to("xla")
    x += 1
    assert known(x) is None
    torch_xla.sync()
    assert known(x) is None
    x.copy_(torch.tensor([4, 5, 6]))
    assert known(x).bounds(None) == (4, 6)


def test_what_a_tensor_held_is_known_as_long_as_a_row_reads_it():
    x = torch.tensor([1, 2, 3]).to("xla")
    buffer = x.value.buffer
    gone = weakref.ref(uploaded.of_buffer(buffer))
    y = x + 1
    del x
    assert uploaded.of_buffer(buffer).bounds(None) == (1, 3)
    del buffer, y
    torch_xla.sync(wait=True)
    gc.collect()
    assert gone() is None


def test_a_buffer_that_has_the_place_of_one_that_is_gone_is_known_as_itself():
    first, second = (torch.tensor([number]).to("xla").value.buffer for number in (1, 2))
    place = id(second)
    last = uploaded.of_buffer(second)
    uploaded._forget(place, weakref.ref(first))
    assert uploaded.of_buffer(second) is last


def test_a_buffer_is_given_away_as_if_nothing_knew_it():
    x = torch.tensor([1, 2, 3]).to("xla")
    buffer = weakref.ref(x.value.buffer)
    assert known(x).bounds(None) == (1, 3)
    x += 1
    torch_xla.sync()
    gc.collect()
    assert buffer() is None or buffer().is_deleted()


@pytest.mark.parametrize("number", [-1, 0, 2, 3])
def test_indices_on_the_cpu_are_looked_at_themselves(number):
    index = torch.tensor([0, number])
    assert uploaded.may_be_outside(index, 0, 3, None) == (number not in range(3))
    assert not uploaded.may_be_outside(index[:0], 0, 3, None)
    assert not uploaded.may_be_outside(index.bool(), 0, 1, None)
