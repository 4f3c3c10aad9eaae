"""Python functions as custom calls of a program."""

import ctypes
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from torch_xdist.collectives import ffi
from torch_xdist.collectives.errors import CollectiveError

MANY = 2**17  # float32: more than what runs on XLA's thread


def call(name, x):
    kind = jax.ShapeDtypeStruct(x.shape, x.dtype)
    made = jax.ffi.ffi_call(name, kind, has_side_effect=True, input_output_aliases={0: 0})
    return made(x, spec="some words")


@pytest.mark.parametrize("size", [3, MANY])
def test_a_call_sees_the_buffers_the_words_and_the_device(size):
    seen = []

    def double(inputs, outputs, spec, device):
        seen.append((inputs[0].shape, spec, device))
        outputs[0][:] = 2 * inputs[0]

    ffi.register(f"double {size}", double)
    result = jax.jit(lambda x: call(f"double {size}", x + 1))(jnp.zeros(size))
    assert np.array_equal(result, np.full(size, 2.0))
    assert seen == [((size,), b"some words", 0)]


@pytest.mark.parametrize("size", [3, MANY])
def test_an_exception_is_the_error_of_the_program(size):
    def refuse(inputs, outputs, spec, device):
        raise ValueError(f"no room for {inputs[0].size} numbers")

    ffi.register(f"refuse {size}", refuse)
    with pytest.raises(Exception, match=f"ValueError: no room for {size} numbers"):
        jax.jit(lambda x: call(f"refuse {size}", x))(jnp.zeros(size)).block_until_ready()


class _Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("no words")


@pytest.mark.parametrize("size", [3, MANY])
@pytest.mark.parametrize(
    ("error", "told"),
    [(OSError("data/\udcff.bin"), r"OSError: data/\\udcff.bin"), (_Unprintable(), "_Unprintable")],
)
def test_an_error_that_is_no_text_ends_the_program_too(size, error, told):
    def refuse(inputs, outputs, spec, device):
        raise error

    name = f"refuse {told} {size}"
    ffi.register(name, refuse)
    with pytest.raises(Exception, match=told):
        jax.jit(lambda x: call(name, x))(jnp.zeros(size)).block_until_ready()


def test_a_table_of_functions_that_is_too_short_is_named():
    table = (ctypes.c_size_t * 40)(8 * 8)
    with pytest.raises(
        CollectiveError, match="XLA's table of functions has 64 bytes, and function"
    ):
        ffi._function(ctypes.addressof(table), 13, ctypes.CFUNCTYPE(None))


def test_a_large_call_runs_on_a_thread_of_ours_and_a_small_one_on_that_of_xla():
    names = []
    ffi.register("who", lambda *_: names.append(threading.current_thread().name))
    for size in (3, MANY):
        jax.jit(lambda x: call("who", x))(jnp.zeros(size)).block_until_ready()
    assert names[0] != "xdist-exchange" and names[1] == "xdist-exchange"


ONE_CORE = f"""
import os
os.sched_setaffinity(0, {{min(os.sched_getaffinity(0))}})
import threading
import jax, jax.numpy as jnp
from torch_xdist.collectives import ffi
later = threading.Event()

def wait(inputs, outputs, spec, device):
    if not later.wait(60):
        raise TimeoutError("the rest of the program did not run")

def go_on(inputs, outputs, spec, device):
    outputs[0][:] = inputs[0]
    later.set()

def call(name, x):
    kind = jax.ShapeDtypeStruct(x.shape, x.dtype)
    made = jax.ffi.ffi_call(name, kind, has_side_effect=True, input_output_aliases={{0: 0}})
    return made(x, spec="")

def step(gradient, x):
    reduced = call("wait", gradient + 1)
    for _ in range(20):
        x = jnp.tanh(x @ x)
    return reduced, call("go_on", x)

ffi.register("wait", wait)
ffi.register("go_on", go_on)
jax.block_until_ready(jax.jit(step)(jnp.zeros({MANY}), jnp.ones((64, 64))))
print("went on")
"""


def test_a_program_goes_on_while_a_large_call_waits_even_on_one_core():
    ran = subprocess.run(
        [sys.executable, "-c", ONE_CORE], capture_output=True, text=True, timeout=120
    )
    assert "went on" in ran.stdout, ran.stderr
