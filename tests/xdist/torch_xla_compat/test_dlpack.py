"""Memory that torch and the device share."""

import torch

import torch_xla
from torch_xla.utils.dlpack import from_dlpack, to_dlpack


def test_two_exports_of_a_tensor_are_one_memory():
    x = torch.ones(64).to("xla") * 3
    one, other = torch.from_dlpack(to_dlpack(x)), torch.from_dlpack(to_dlpack(x))
    assert one.data_ptr() == other.data_ptr() and one.tolist() == [3.0] * 64


def test_a_write_leaves_the_memory_that_came_from_torch_to_its_owner():
    source = torch.ones(4096)
    came = from_dlpack(source)
    held = came.value.buffer
    came += 1
    torch_xla.sync()
    assert source[0].item() == 1 and came[0].item() == 2
    # A program that was given it would have deleted it.
    assert not held.is_deleted()
