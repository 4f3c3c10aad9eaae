"""Compiled programs in bytes, and back."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import compilation_cache

from torch_xdist.core.kept import jax_cache

DEVICE = jax.devices("cpu")[0]
TYPE = jax.ShapeDtypeStruct((3,), np.float32)


def compiled(function, **named):
    there = jax.sharding.SingleDeviceSharding(DEVICE)
    jitted = jax.jit(function, in_shardings=there, out_shardings=there, **named)
    return jitted.trace((TYPE,), [TYPE]).lower().compile()


def entry_of(program):
    """What JAX's cache has of a program."""
    executable = program._executable.xla_executable.serialize()
    timed = compilation_cache.combine_executable_and_time(executable, 1)
    return compilation_cache.compress_executable(timed)


@pytest.fixture(scope="module")
def parts():
    program = compiled(lambda xs, ys: [xs[0] + ys[0], ys[0] * 2], donate_argnums=(0,))
    return jax_cache.packed(program), entry_of(program)


@pytest.mark.on_cpu
def test_both_parts_together_are_the_program(parts):
    rest, entry = parts
    assert len(rest) < len(entry) + 20_000
    again = jax_cache.unpacked(rest, entry, DEVICE)
    given = jnp.ones(3, jnp.float32)
    results = again((given,), [jnp.arange(3, dtype=jnp.float32)])
    assert [x.tolist() for x in results] == [[1, 2, 3], [0, 2, 4]]
    assert given.is_deleted()
    assert again.memory_analysis().argument_size_in_bytes == 24
    assert "HloModule" in again.as_text()


def test_what_calls_python_has_no_bytes():
    def calling(xs, ys):
        return jax.pure_callback(lambda x: x, TYPE, xs[0])

    assert jax_cache.packed(compiled(calling)) is None


def test_where_jax_has_other_names_there_are_none():
    assert jax_cache.packed(object()) is None


@pytest.mark.parametrize("cut", [0, 1])
def test_damaged_parts_raise(parts, cut):
    broken = [part[:-9] if place == cut else part for place, part in enumerate(parts)]
    with pytest.raises(Exception, match=r"."):
        jax_cache.unpacked(*broken, DEVICE)


def test_a_program_of_another_device_raises():
    loading = jax_cache._Unpacking(b"", b"", DEVICE)
    with pytest.raises(pickle.UnpicklingError, match=r"a program of \('device', 7\), on device 0"):
        loading.persistent_load(("device", 7))
