"""Where JAX is told not to look for a TPU: where its library is there, and no chip."""

import importlib.metadata
import importlib.util
from typing import Any

import pytest

from torch_xdist.core.devices import plugins
from torch_xdist.system import tpu_host


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What is on this host; libtpu alone at first."""
    found: dict[str, Any] = {"modules": {"libtpu"}, "entries": (), "chips": False}

    def spec(name: str) -> object | None:
        return name if name in found["modules"] else None

    monkeypatch.setattr(importlib.util, "find_spec", spec)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: found["entries"])
    monkeypatch.setattr(tpu_host, "may_have_chips", lambda: found["chips"])
    return found


def test_libtpu_without_a_chip_leaves_the_cpu(host: dict[str, Any]) -> None:
    assert plugins.leave_only_the_cpu()


@pytest.mark.parametrize(
    ("what", "there"),
    [
        ("modules", set()),
        ("modules", {"libtpu", "jax_plugins"}),
        ("entries", ("xla_cuda13",)),
        ("chips", True),
    ],
)
def test_anything_else_is_left_to_jax(host: dict[str, Any], what: str, there: Any) -> None:
    host[what] = there
    assert not plugins.leave_only_the_cpu()


def test_a_plugin_of_the_user_is_left_to_jax(
    host: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(plugins.REGISTERED, "MINE", plugins.DevicePlugin())
    assert not plugins.leave_only_the_cpu()
