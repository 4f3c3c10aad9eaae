"""A program that the device cannot hold is refused, and the step goes on without it."""

import itertools

import jax
import pytest
import torch

import torch_xdist.core.torch_side.registration  # noqa: F401
from torch_xdist.core.devices import steps, transfer
from torch_xdist.core.programs import memory_bounds
from torch_xdist.errors import OutOfMemoryError


class Gpu:
    """Of a device that is not here, what is looked at."""

    platform = "gpu"

    def __init__(self, *stats):
        told = itertools.chain(stats, itertools.repeat(stats[-1]))
        self.memory_stats = lambda: next(told)

    def __str__(self):
        return "CUDA:0"


class Sized:
    """A program of 5 bytes of operands, of which 2 are given to results of 3; 4 in between."""

    output_size_in_bytes, alias_size_in_bytes = 3, 2
    temp_size_in_bytes, argument_size_in_bytes = 4, 5
    asks_bytes = 0

    def memory(self):
        return self


@pytest.mark.on_cpu
def test_more_than_the_host_has_is_an_error_with_both_numbers_and_other_tensors_live_on():
    other = torch.ones(3, device="xla") * 7
    large = torch.rand(1024, 1024, 1024, 1024, 1024, device="xla")
    total = large.sum()
    words = (
        f"Out of memory allocating [0-9]{{16}} bytes: .* this host has {memory_bounds.host_bytes()}"
    )
    for _ in range(2):
        with pytest.raises(OutOfMemoryError, match=words):
            total.cpu()
    del large, total
    steps.sync()
    assert other.tolist() == [7, 7, 7]


def test_a_program_that_needs_more_than_a_gpu_has_is_refused_with_its_numbers():
    memory_bounds.check(Sized(), Gpu({"bytes_limit": 10}))
    memory_bounds.check(Sized(), Gpu(None))
    words = "allocating 10 bytes: 5 for operands, 1 for results, 4 .* where CUDA:0 has 9 in all"
    with pytest.raises(OutOfMemoryError, match=words):
        memory_bounds.check(Sized(), Gpu({"bytes_limit": 9}))


def test_what_xla_says_of_a_full_device_becomes_that_error_with_what_is_held():
    full = RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 256.02GiB [x]")
    words = "CUDA:0: Out of memory while .* 256.02GiB; 7 of 9 bytes are held; delete tensors"
    with pytest.raises(OutOfMemoryError, match=words) as told:
        memory_bounds.raise_if_exhausted(full, Gpu({"bytes_in_use": 7, "bytes_limit": 9}))
    assert told.value.__cause__ is full and isinstance(told.value, RuntimeError)
    memory_bounds.raise_if_exhausted(told.value, Gpu(None))
    memory_bounds.raise_if_exhausted(RuntimeError("another"), Gpu(None))


def test_a_device_that_does_not_tell_of_its_memory_is_not_asked_further():
    full = RuntimeError("RESOURCE_EXHAUSTED: Out of memory")
    with pytest.raises(OutOfMemoryError, match="Out of memory; delete"):
        memory_bounds.raise_if_exhausted(full, object())


def held(in_use, limit=100):
    return {"bytes_in_use": in_use, "bytes_limit": limit}


@pytest.mark.on_cpu
def test_a_large_program_asks_for_room_and_a_small_one_does_not():
    large, small, here = Sized(), Sized(), Sized()
    memory_bounds.check(large, Gpu({"bytes_limit": 1000}))
    memory_bounds.check(small, Gpu({"bytes_limit": 10_000}))
    memory_bounds.check(here, jax.devices("cpu")[0])
    assert (large.asks_bytes, small.asks_bytes, here.asks_bytes) == (5, 0, 0)


def test_a_device_that_is_too_full_is_told_before_anything_is_written_over():
    def room_on(*stats):
        program = Sized()
        program.asks_bytes, program.asks_of = 5, Gpu(*stats)
        memory_bounds.make_room(program)

    room_on(held(95))
    # What ran meanwhile gave memory back.
    room_on(held(96), held(90))
    # Or what only the garbage collector found.
    room_on(held(96), held(96), held(90))
    room_on(None)
    words = "CUDA:0: Out of memory: the program needs 5 bytes .* 96 of 100 are held; delete"
    with pytest.raises(OutOfMemoryError, match=words):
        room_on(held(96))


def ask(program, jax_device):
    program.asks_bytes, program.asks_of = 9 * (program.rows > 2), jax_device


@pytest.mark.on_cpu
def test_a_step_without_room_leaves_its_operands_and_others_are_read(monkeypatch):
    monkeypatch.setattr(memory_bounds, "check", ask)
    monkeypatch.setattr(memory_bounds, "_stats", lambda device: held(99))
    weight = torch.zeros(3, device="xla")
    steps.sync()
    weight += 1
    large = torch.full((5,), 2.0, device="xla").exp().sin().cos()
    with pytest.raises(OutOfMemoryError, match="needs 9 bytes"):
        steps.sync()
    assert weight[1].item() == 1.0
    del large
    steps.sync()
    assert weight.tolist() == [1, 1, 1]


def test_what_was_lost_for_lack_of_memory_says_so_where_it_is_read():
    class Lost:
        device, shape = Gpu(None), (3,)

        def _single_device_array_to_np_array_did_copy(self):
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying")

    with pytest.raises(OutOfMemoryError, match="CUDA:0: Out of memory while trying; delete"):
        transfer.to_host(Lost(), torch.float32)
