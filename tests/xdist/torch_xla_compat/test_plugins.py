"""Device plugins: what is registered, and what JAX is told of it."""

import importlib.metadata
import json
import subprocess
import sys

import pytest

from torch_xdist import settings
from torch_xdist.core.devices import device
from torch_xdist.core.devices import plugins as registry
from torch_xdist.errors import DeviceError
from torch_xdist.system.rank import Rank
from torch_xla.experimental import plugins


@pytest.fixture(autouse=True)
def nothing_registered(monkeypatch):
    monkeypatch.setattr(registry, "REGISTERED", {})
    monkeypatch.setattr("torch_xdist.torch_xla_compat.plugins.REGISTERED", registry.REGISTERED)
    monkeypatch.delenv("PJRT_DYNAMIC_PLUGINS", raising=False)


class Mine(plugins.DevicePlugin):
    """Hardware that notes how its processes are prepared."""

    def __init__(self, **options):
        self.options, self.prepared = options, []

    def library_path(self):
        return "/lib/mine.so"

    def configure_multiprocess(self, local_rank, local_world_size):
        self.prepared.append((local_rank, local_world_size))

    def client_create_options(self):
        return self.options


def test_jax_is_told_the_library():
    plugins.register_plugin("mine", Mine())
    environ = {"PJRT_NAMES_AND_LIBRARY_PATHS": "mine:/old.so,other:/other.so"}
    assert registry.tell_jax("MINE", Rank(), environ) == "mine"
    assert environ == {"PJRT_NAMES_AND_LIBRARY_PATHS": "other:/other.so,mine:/lib/mine.so"}


def test_jax_is_told_the_options_in_a_file():
    plugins.register_plugin("mine", Mine(memory=3))
    environ = {}
    registry.tell_jax("MINE", Rank(), environ)
    name, _, path = environ["PJRT_NAMES_AND_LIBRARY_PATHS"].partition(":")
    with open(path) as file:
        assert json.load(file) == {"library_path": "/lib/mine.so", "create_options": {"memory": 3}}
    assert name == "mine"


def test_a_rank_prepares_itself_before_the_backend_starts():
    plugin = Mine()
    plugins.register_plugin("mine", plugin)
    registry.tell_jax("MINE", Rank(rank=3, world_size=4, local_rank=1, local_world_size=2), {})
    assert plugin.prepared == [(1, 2)]


def test_a_plugin_has_one_device_until_it_says_more():
    plugin = plugins.DevicePlugin()
    assert (plugin.host_index(), plugin.physical_chip_count()) == (0, 1)
    assert (plugin.client_create_options(), plugin.requires_xla_coordinator()) == ({}, False)
    with pytest.raises(NotImplementedError, match=r"DevicePlugin\.library_path: say where"):
        plugin.library_path()
    with pytest.raises(NotImplementedError, match=r"DevicePlugin\.configure_single_process: s"):
        plugin.configure_single_process()


def test_the_plugin_in_use_is_that_of_the_platform(monkeypatch):
    with pytest.raises(DeviceError, match=r"CPU has no plugin; registered are none; call regist"):
        plugins.default()
    monkeypatch.setattr(settings, "pjrt_device", lambda: "MINE")
    plugins.register_plugin("mine", mine := Mine())
    assert plugins.default() is mine


def test_plugins_of_installed_packages_are_registered(monkeypatch):
    entry = type("Entry", (), {"name": "mine", "load": lambda self: Mine})()
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [entry])
    plugins.register_installed_plugins()
    assert isinstance(registry.REGISTERED["MINE"], Mine)


def test_plugins_are_asked_for_before_a_device_is_used(monkeypatch):
    device.start()
    with pytest.raises(DeviceError, match="Can't enable dynamic plugins after XLA runtime is init"):
        plugins.use_dynamic_plugins()
    monkeypatch.setattr(device, "is_started", lambda: False)
    monkeypatch.setenv("PJRT_DYNAMIC_PLUGINS", "0")
    plugins.use_dynamic_plugins()
    assert not plugins.using_dynamic_plugins()
    monkeypatch.setattr(settings, "pjrt_device", lambda: "MINE")
    assert plugins.using_dynamic_plugins()


SCRIPT = """
import torch, torch_xla
from torch_xla.experimental import plugins

class Mine(plugins.DevicePlugin):
    def library_path(self):
        return {library!r}

plugins.register_plugin("mine", Mine())
torch.ones(2, device="xla")
"""


def test_jax_loads_the_library(tmp_path):
    library = tmp_path / "mine.so"
    library.write_text("no library")
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(library=str(library))],
        env={"PATH": "", "PJRT_DEVICE": "MINE"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 1
    assert "DeviceError: PJRT_DEVICE=MINE: JAX cannot start it: " in ended.stderr
    assert f"{library}: file too short" in ended.stderr
