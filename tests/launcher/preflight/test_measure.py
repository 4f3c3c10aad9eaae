"""What a host finds out about itself."""

import importlib.metadata
import os
import platform
import threading
from pathlib import Path

import pytest

from torch_xdist.launcher.preflight import measure

QUESTION = {
    "device": "CPU",
    "alone": True,
    "address": "",
    "cwd": os.getcwd(),
    "log_dir": "",
    "code": {},
}


def version_or_nothing(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def test_this_machine_tells_everything(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XLA_RUN_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("https_proxy", "http://me:pw@proxy:8080")
    found = measure.facts(QUESTION)
    assert found["failed"] == {} and found["slow"] == []
    assert found["versions"]["python"] == platform.python_version()
    assert found["versions"]["jax"] == importlib.metadata.version("jax")
    assert found["versions"]["libtpu"] == version_or_nothing("libtpu")
    assert found["disk"]["logs"] == str(tmp_path / "logs") and found["disk"]["free_bytes"] > 0
    assert found["disk"]["has_cwd"]
    assert found["shared_memory"]["total_bytes"] >= found["shared_memory"]["free_bytes"] > 0
    assert found["limits"]["open_files"] > 0
    assert found["proxies"]["https_proxy"] == "http://***@proxy:8080"
    assert found["host"]["cores"] and found["code"] == {}


def test_a_place_for_logs_that_is_not_there_yet_is_that_above_it(tmp_path: Path) -> None:
    found = measure.facts({**QUESTION, "log_dir": str(tmp_path / "a/b"), "cwd": "/no/such"})
    assert found["disk"]["free_bytes"] > 0 and not found["disk"]["has_cwd"]
    assert not (tmp_path / "a").exists()


def test_a_part_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(question: measure.Question) -> None:
        raise OSError(5, "no disk")

    monkeypatch.setitem(measure._PARTS, "disk", fails)
    found = measure.facts(QUESTION)
    assert "no disk" in found["failed"]["disk"] and "disk" not in found
    assert found["versions"]


def test_a_part_that_hangs_is_named_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = threading.Event()
    monkeypatch.setitem(measure._PARTS, "holders", lambda question: ends.wait())
    try:
        found = measure.facts(QUESTION, 3.0)
    finally:
        ends.set()
    assert found["slow"] == ["holders"] and "holders" not in found and found["versions"]
