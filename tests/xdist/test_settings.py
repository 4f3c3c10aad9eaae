"""The environment, parsed in one place."""

import ast
import os
import re
from pathlib import Path

import pytest

from torch_xdist import settings


def test_an_empty_environment_gives_the_defaults():
    found = settings.read({})
    assert found.platform is None and found.cpu_devices is None
    assert found.metrics_samples == 1024
    assert found.metrics_percentiles == settings.DEFAULT_PERCENTILES
    assert found.graph_format == "text" and found.fallback == "cpu"
    assert not found.debug and found.debug_level == 0


@pytest.mark.parametrize(
    ("text", "value"), [("1", True), ("true", True), ("0", False), ("false", False), ("", False)]
)
def test_a_switch_is_a_word_or_a_number(text, value):
    assert settings.read({"XLA_SYNC_WAIT": text}).sync_wait is value


def test_the_debug_switch_raises_the_debug_level():
    assert settings.read({"PT_XLA_DEBUG": "1"}).debug_level == 100
    assert settings.read({"PT_XLA_DEBUG": "1", "PT_XLA_DEBUG_LEVEL": "2"}).debug_level == 2


@pytest.mark.parametrize("name", settings._EAGER_NAMES)
def test_every_name_of_the_eager_switch_is_known(name):
    assert settings.read({name: "1"}).eager


@pytest.mark.parametrize(
    ("name", "dtype"), [("XLA_USE_BF16", "bfloat16"), ("XLA_DOWNCAST_FP16", "float16")]
)
def test_float32_may_be_kept_shorter(monkeypatch, name, dtype):
    monkeypatch.setenv(name, "1")
    assert settings.narrowed()["float32"] == dtype


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"XLA_METRICS_SAMPLES": "many"}, "XLA_METRICS_SAMPLES='many' is not a number"),
        ({"XLA_SYNC_WAIT": "yes"}, "XLA_SYNC_WAIT='yes' is not a number"),
        ({"XLA_SAVE_TENSORS_FMT": "png"}, "XLA_SAVE_TENSORS_FMT='png'; it may be text or dot"),
        ({"XDIST_FALLBACK": "gpu"}, "XDIST_FALLBACK='gpu'; it may be cpu or error"),
        ({"XLA_METRICS_PERCENTILES": "0.5;2"}, "needs fractions from 0 to below 1"),
    ],
)
def test_a_value_that_cannot_be_read_names_its_variable(env, words):
    with pytest.raises(ValueError, match=words):
        settings.read(env)


def test_setting_the_platform_is_seen_by_children(monkeypatch):
    monkeypatch.setenv("PJRT_DEVICE", "CPU")
    settings.set_platform("TPU")
    assert settings.current().platform == "TPU"
    monkeypatch.undo()
    settings.reread()


def test_what_is_set_after_the_platform_still_counts(monkeypatch):
    monkeypatch.setenv("PJRT_DEVICE", "CPU")
    settings.set_platform("CPU")
    monkeypatch.setenv("CPU_NUM_DEVICES", "7")
    assert settings.current().cpu_devices == 7
    monkeypatch.undo()
    settings.reread()


def test_getenv_as_reads_bool_through_int(monkeypatch):
    monkeypatch.setenv("SOME_SWITCH", "0")
    assert settings.getenv_as("SOME_SWITCH", bool) is False
    assert settings.getenv_as("NOT_THERE_AT_ALL", int, 7) == 7
    monkeypatch.setenv("SOME_SWITCH", "true")
    assert settings.check_env_flag("SOME_SWITCH")
    with pytest.raises(ValueError, match="invalid literal"):
        settings.getenv_as("SOME_SWITCH", bool)


ROOT = Path(__file__).parents[2]
VARIABLE = re.compile(r"[A-Z][A-Z0-9]*_[A-Z0-9_]*[A-Z0-9]|RANK")


def strings_in(tree):
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def variables_of_a_rank():
    """What `from_environ` looks up; the record names also those that it only writes."""
    tree = ast.parse((ROOT / "xdist/system/rank.py").read_text())
    return {
        text
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("_text", "_number")
        for text in strings_in(node)
    }


def variables_read():
    """Names of variables among the strings of the files that read the environment."""
    strings = strings_in(ast.parse((ROOT / "xdist/settings.py").read_text()))
    strings |= variables_of_a_rank()
    read_elsewhere = {
        name
        for file in (ROOT / "xdist").rglob("*.py")
        for name in re.findall(r'getenv_as\("(\w+)"', file.read_text())
    }
    narrowed = {
        f"XLA_{word}_{name}" for word in ("USE", "DOWNCAST") for name in ("BF16", "F16", "FP16")
    }
    named = {text for text in strings if VARIABLE.fullmatch(text)}
    return named | read_elsewhere | narrowed


def test_the_page_of_variables_names_all_that_are_read_and_no_others():
    rows = re.findall(r"^\| (`[A-Z].*?) \|", (ROOT / "docs/settings.md").read_text(), re.M)
    documented = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert documented == variables_read()


@pytest.mark.parametrize(
    ("cores", "before", "after"),
    [
        ({3}, "", "--xla_cpu_multi_thread_eigen=false"),
        ({3}, "--xla_cpu_multi_thread_eigen=true", "--xla_cpu_multi_thread_eigen=true"),
        ({0, 1}, "--a=b", "--a=b"),
    ],
)
def test_one_core_keeps_operators_in_one_piece(monkeypatch, cores, before, after):
    monkeypatch.setenv("XLA_FLAGS", before)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: cores)
    settings.fit_to_one_core()
    assert os.environ["XLA_FLAGS"] == after
