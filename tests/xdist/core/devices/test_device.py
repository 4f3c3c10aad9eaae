"""The devices of this process."""

import os
import subprocess
import sys

import jax
import pytest

from torch_xdist import settings
from torch_xdist.core.devices import device
from torch_xdist.errors import DeviceError
from torch_xdist.system import tpu_host


def test_a_platform_that_jax_cannot_start_is_named(monkeypatch):
    def refuse():
        raise RuntimeError("no such chip")

    monkeypatch.setattr(jax, "local_devices", refuse)
    with pytest.raises(DeviceError, match=r"PJRT_DEVICE=.*: JAX cannot start it: no such chip"):
        device._addressable()


def test_what_keeps_a_tpu_from_its_start_is_told_before_and_afterwards(monkeypatch):
    def refuse():
        raise RuntimeError("busy")

    monkeypatch.setenv("PJRT_DEVICE", "TPU")
    settings.reread()
    monkeypatch.setattr(jax, "local_devices", refuse)
    monkeypatch.setattr(tpu_host, "why_unfit", lambda: "libtpu 0.1 is installed")
    monkeypatch.setattr(tpu_host, "why_busy", lambda: "process 7 (python x) has /dev/accel0")
    words = r"PJRT_DEVICE=TPU: JAX cannot start it: busy \(process 7 \(python x\) has /dev/accel0"
    with (
        pytest.warns(UserWarning, match=r"PJRT_DEVICE=TPU: libtpu 0\.1 is installed"),
        pytest.raises(DeviceError, match=words),
    ):
        device._addressable()
    monkeypatch.undo()
    settings.reread()


def test_a_rank_may_have_all_devices_of_its_host():
    command = "from torch_xdist.core.devices import device; device.drive_all(); "
    command += "print(device.device_count())"
    rank = {"RANK": "0", "WORLD_SIZE": "1", "CPU_NUM_DEVICES": "3", "PJRT_DEVICE": "CPU"}
    done = subprocess.run(
        [sys.executable, "-c", command],
        env={**os.environ, **rank},
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.stdout.strip() == "3", done.stderr
