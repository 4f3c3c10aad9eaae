"""What a script chooses before it first uses a device, each in a process of its own."""

import subprocess
import sys
import textwrap

import pytest


def run(code, *arguments):
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=200)


CACHED = """
    import sys, torch, torch_xla, torch_xla.runtime as xr
    xr.initialize_cache(sys.argv[1], readonly=sys.argv[2] == "readonly")
    assert (torch.ones(3, device="xla") + int(sys.argv[3])).sum().item() == 3 + 3 * int(sys.argv[3])
    (torch.ones(int(sys.argv[3]), device="xla") * 2).tolist()
    import torch_xla.debug.metrics as met
    print(met.counter_value("PersistentCacheMiss"), met.counter_value("PersistentCacheHit"))
"""


@pytest.mark.long
def test_programs_are_kept_between_runs(tmp_path):
    first = run(CACHED, tmp_path, "write", 2)
    assert first.returncode == 0, first.stderr
    assert first.stdout.split() == ["2", "None"]
    kept = {p.name for p in tmp_path.iterdir() if p.name.endswith("-cache")}
    assert kept
    again = run(CACHED, tmp_path, "readonly", 5)
    assert again.returncode == 0, again.stderr
    assert again.stdout.split() == ["2", "None"]
    assert {p.name for p in tmp_path.iterdir() if p.name.endswith("-cache")} == kept
    known = run(CACHED, tmp_path, "readonly", 2)
    assert known.stdout.split() == ["None", "2"], known.stderr


IMPORTED = """
    import threading, torch
    before = threading.active_count()
    import torch_xla, torch_xla.core.xla_model, torch_xla.distributed.xla_multiprocessing
    import torch_xla.distributed.parallel_loader, torch_xla.runtime as xr
    from torch_xdist.core.devices import device
    assert threading.active_count() == before
    assert not device.is_started() and not torch.cuda.is_initialized()
    assert torch_xla._internal.tpu.num_available_devices() >= 1 and not device.is_started()
"""


def test_importing_starts_nothing():
    done = run(IMPORTED)
    assert done.returncode == 0, done.stderr


UNKNOWN = """
    import torch_xla.runtime as xr, torch_xla
    xr.set_device_type("ABACUS")
    torch_xla.device()
"""


def test_an_unknown_platform_is_named():
    done = run(UNKNOWN)
    assert done.returncode == 1
    assert "No PjRtPlugin registered for: ABACUS. Make sure the environment variable" in done.stderr
    assert "It may be CPU, TPU" in done.stderr


UNKNOWN_BY_FORCE = """
    import os, torch_xla, torch
    for name in "ABACUS", "CPU":
        os.environ["PJRT_DEVICE"] = name
        try:
            torch_xla._XLAC._init_computation_client()
        except RuntimeError as error:
            print(error)
    torch_xla.runtime.set_device_type("CPU")
    print(torch.ones(2, device="xla").sum().item())
"""


def test_the_first_outcome_of_starting_by_force_stays_and_devices_start_all_the_same():
    done = run(UNKNOWN_BY_FORCE)
    assert done.returncode == 0, done.stderr
    first, second, value = done.stdout.splitlines()
    assert first == second and first.startswith("No PjRtPlugin registered for: ABACUS. Make sure")
    assert value == "2.0"


JAX_FIRST = """
    import jax, torch, torch_xla
    assert float(jax.numpy.ones(2).sum()) == 2
    torch_xla.device()
"""


def test_a_script_may_use_jax_first(monkeypatch):
    monkeypatch.setenv("CPU_NUM_DEVICES", "2")
    done = run(JAX_FIRST)
    assert done.returncode == 1
    assert "CPU_NUM_DEVICES=2: JAX runs already, with 1 device(s); use an xla" in done.stderr
    monkeypatch.delenv("CPU_NUM_DEVICES")
    assert run(JAX_FIRST).returncode == 0
