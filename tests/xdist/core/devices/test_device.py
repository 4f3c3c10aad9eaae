"""The devices of this process."""

import jax
import pytest

from torch_xdist.core.devices import device
from torch_xdist.errors import DeviceError


def test_a_platform_that_jax_cannot_start_is_named(monkeypatch):
    def refuse():
        raise RuntimeError("no such chip")

    monkeypatch.setattr(jax, "local_devices", refuse)
    with pytest.raises(DeviceError, match=r"PJRT_DEVICE=.*: JAX cannot start it: no such chip"):
        device._addressable()
