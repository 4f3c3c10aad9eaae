"""The compiler's process: bounded, named where it aborts, gone afterwards."""

import os
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import psutil
import pytest
from jax.sharding import SingleDeviceSharding

from torch_xdist.ahead import module_compiler, topology
from torch_xdist.ahead.compiler import Compiler
from torch_xdist.ahead.topology import Topology, devices
from torch_xdist.core.programs.jax_internals import module_bytes
from torch_xdist.errors import ArgumentError, DeviceError, ReleaseError
from torch_xdist.ops import tpu_forms

V5E = Topology("v5e:2x4")


def lowered(function, shape, dtype=jnp.float32):
    there = SingleDeviceSharding(devices(V5E)[0])
    return jax.jit(function).lower(jax.ShapeDtypeStruct(shape, dtype, sharding=there))


def test_a_module_becomes_a_program_of_the_tpu(compiler):
    found = compiler.compile(module_bytes(lowered(lambda x: x @ x, (128, 128))), V5E, [0], {})
    assert found.is_ok
    assert found.bytes["arguments"] == found.bytes["results"] == 128 * 128 * 4
    assert found.flops > 2 * 128**3 * 0.9


def test_what_the_compiler_refuses_comes_back_in_its_words(compiler):
    found = compiler.compile(b"no module", V5E, [0], {})
    assert found.kind == "refused"
    assert "Unable to parse module" in found.words


def test_an_abort_is_named_and_the_next_program_compiles(compiler, monkeypatch):
    monkeypatch.setattr(tpu_forms, "_WIDE", (jnp.dtype(jnp.float32),))
    with jax.enable_x64(True):
        module = module_bytes(lowered(jnp.linalg.svd, (6, 4)))
    found = compiler.compile(module, V5E, [0], {})
    assert found.kind == "aborted"
    assert "SIGABRT" in found.words and "Check failed" in found.words
    assert compiler.pid is None
    assert compiler.compile(module_bytes(lowered(jnp.sin, (8,))), V5E, [0], {}).is_ok


def test_what_takes_too_long_is_ended(compiler):
    module = module_bytes(lowered(jnp.sin, (8,)))
    with Compiler(limit_s=0.2) as hurried:
        started = time.monotonic()
        found = hurried.compile(module, V5E, [0], {})
        assert found.kind == "late" and "not done after 0.2 s" in found.words
        assert time.monotonic() - started < 20
        assert hurried.pid is None


def test_a_compiler_that_was_killed_is_named(compiler):
    module = module_bytes(lowered(jnp.sin, (8,)))
    with Compiler(limit_s=60) as other:
        assert other.compile(module, V5E, [0], {}).is_ok
        psutil.Process(other.pid).kill()
        found = other.compile(module, V5E, [0], {})
        assert found.kind == "aborted" and "SIGKILL" in found.words
        assert other.compile(module, V5E, [0], {}).is_ok
        left = other.pid
    assert not psutil.pid_exists(left)


_KILLED = """
import os, sys, time
from torch_xdist.ahead.compiler import Compiler
from torch_xdist.ahead.topology import Topology
compiler = Compiler(30)
compiler.compile(b"no module", Topology("v5e:2x4"), [0], {})
print(compiler.pid, flush=True)
time.sleep(60)
"""


def test_nothing_is_left_of_a_process_that_was_killed(compiler):
    asking = subprocess.Popen([sys.executable, "-c", _KILLED], stdout=subprocess.PIPE, text=True)
    with asking:
        pid = int(asking.stdout.readline())
        assert psutil.pid_exists(pid)
        asking.kill()
    deadline = time.monotonic() + 10
    while psutil.pid_exists(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not psutil.pid_exists(pid)


def test_two_slices_have_numbers(compiler):
    found = devices(Topology("v5e:2x2", 2))
    assert [device.slice_index for device in found] == [0] * 4 + [1] * 4
    assert str(Topology("v5e:2x2", 2)) == "2 slices of v5e:2x2"


def test_the_environment_is_as_before(compiler):
    devices(V5E)
    assert "ALLOW_MULTIPLE_LIBTPU_LOAD" not in os.environ
    # What a process started now is given: libtpu puts warnings there where it finds nothing.
    told = subprocess.run(["env"], capture_output=True, text=True, check=True).stdout
    assert "TPU_WORKER_ID" not in told and "CLOUD_TPU_TASK_ID" not in told


def test_an_unknown_topology_is_named(compiler):
    with pytest.raises(ArgumentError, match=r"topology 'v5e:3x17': libtpu cannot describe it"):
        devices(Topology("v5e:3x17"))


def test_a_missing_libtpu_is_named(monkeypatch):
    monkeypatch.setattr(topology.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DeviceError, match=r"libtpu, the TPU compiler, is not installed: pip inst"):
        devices(Topology("v5e:4x4"))


def test_a_jax_that_compiles_otherwise_is_named(monkeypatch):
    monkeypatch.setattr(module_compiler, "get_compile_options", None)
    with pytest.raises(ReleaseError, match=r"has no get_compile_options"):
        module_compiler.compile_module(b"", [], [], {})
