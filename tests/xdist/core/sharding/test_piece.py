"""One device's array on the host: who holds the memory of what is read."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from torch_xdist import platforms
from torch_xdist.core.sharding import piece

# Of a CPU, which seems to be another device.
pytestmark = pytest.mark.on_cpu


@pytest.fixture
def far(monkeypatch):
    """An array that JAX copies to the host, as it does one of a GPU: of less than a byte each."""
    monkeypatch.setitem(platforms.CHOICES, "cpu", platforms.Choices("cpu"))
    return jax.device_put(jnp.ones((256, 512), jnp.int4))


def test_two_reads_of_a_large_array_have_memory_of_their_own(far):
    (one, is_private), (other, _) = piece.read(far), piece.read(far)
    assert is_private and one.ctypes.data != other.ctypes.data
    piece.writable(one)[0] = 3
    assert other[0, 0] == 1 and np.asarray(far)[0, 0] == 1


def test_a_large_array_keeps_no_copy_on_the_host(far):
    first = piece.read(far)[0].ctypes.data
    assert far._single_device_array_to_np_array_did_copy()[0].ctypes.data != first


def test_small_arrays_and_those_of_a_cpu_are_jaxs_own_and_copied_by_whoever_writes(far):
    assert piece.read(far[:2])[1] is False
    assert piece.read(jnp.ones(1 << 20))[1] is False


def test_memory_that_may_be_written_to_is_the_same_and_lives_as_long_as_it_is_held():
    array = np.arange(6.0).reshape(2, 3)
    assert piece.writable(array) is array
    array.flags.writeable = False
    held = piece.writable(array)
    assert held.ctypes.data == array.ctypes.data and held.shape == (2, 3)
    del array
    held += 1
    assert held.tolist() == [[1, 2, 3], [4, 5, 6]]
