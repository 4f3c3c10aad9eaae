"""Values from the device to the host: what is copied, and how often."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from torch_xdist.core.devices import transfer


class Remote:
    """A buffer of another device: what is read of it is a copy that only the reader has."""

    def __init__(self, values):
        self._values = np.asarray(values)

    def _single_device_array_to_np_array_did_copy(self):
        self.read = self._values.copy(order="K")
        return self.read, True


def test_reading_gives_memory_of_its_own():
    buffer = jnp.ones(4)
    transfer.to_host(buffer, torch.float32).zero_()
    assert jnp.all(buffer == 1)


def test_the_copy_that_came_from_another_device_is_not_copied_again():
    remote = Remote(jnp.arange(4, dtype=jnp.float32))
    host = transfer.to_host(remote, torch.float32)
    assert host.tolist() == [0, 1, 2, 3]
    assert host.data_ptr() == remote.read.ctypes.data


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.bool, torch.int64])
def test_every_dtype_comes_from_another_device(dtype):
    values = torch.tensor([0.0, 1.0, 1.0]).to(dtype)
    host = transfer.to_host(Remote(transfer.as_numpy(values)), dtype)
    assert host.dtype is dtype and torch.equal(host.float(), values.float())


def test_a_buffer_keeps_no_copy_of_what_was_read():
    buffer = jax.device_put(jnp.arange(6.0).reshape(2, 3).T)
    transfer.to_host(buffer, torch.float32)
    assert getattr(buffer, "_npy_value", None) is None


def test_the_bytes_of_a_buffer_are_those_of_its_values_in_row_major_order():
    values = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
    read = transfer.host_bytes(jnp.asarray(transfer.as_numpy(values)), torch.bfloat16)
    assert read.tobytes() == values.view(torch.uint8).numpy().tobytes()


def test_the_bytes_of_what_is_stored_narrower_are_those_of_the_reported_dtype():
    read = transfer.host_bytes(jnp.asarray([1.5, 2.0], jnp.bfloat16), torch.float32)
    assert read.tobytes() == np.asarray([1.5, 2.0], np.float32).tobytes()


def test_the_bytes_on_the_cpu_are_not_a_copy():
    buffer = jnp.arange(8, dtype=jnp.float32)
    one, other = (transfer.host_bytes(buffer, torch.float32) for _ in range(2))
    assert one.ctypes.data == other.ctypes.data


def test_what_comes_in_another_order_is_put_in_rows():
    remote = Remote(np.arange(6, dtype=np.float32).reshape(2, 3).T)
    assert transfer.to_host(remote, torch.float32).is_contiguous()


def test_tensors_that_are_owned_become_the_devices_memory_and_others_are_copied():
    for owned in (True, False):
        tensor = torch.arange(64.0)
        [moved] = transfer.all_to_device([tensor], "xla:0", owned=owned)
        there = transfer.host_bytes(moved.value.buffer, torch.float32).ctypes.data
        assert (there == tensor.data_ptr()) is owned
