"""Environment variables of the launcher, read from plain mappings."""

import math
import os
from dataclasses import fields
from pathlib import Path

import pytest

from torch_xdist.launcher.facts import settings
from torch_xdist.launcher.facts.errors import SettingError
from torch_xdist.launcher.facts.settings import Timeouts, parse_seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("1.5s", 1.5), ("5m", 300), ("2h", 7200), ("250ms", 0.25), ("off", math.inf)],
)
def test_durations_are_seconds_or_have_a_unit(text, seconds):
    assert parse_seconds(text, "--x") == seconds


@pytest.mark.parametrize("text", ["soon", "-1", "5 weeks", "1,5", "1e3", ""])
def test_what_is_no_duration_is_refused_with_its_name(text):
    with pytest.raises(SettingError, match=r"XLA_RUN_GRACE: .* is no duration; give seconds"):
        parse_seconds(text, "XLA_RUN_GRACE")


def test_the_timeouts_have_the_defaults_of_the_contract():
    assert settings.timeouts({}) == Timeouts(
        *(300, 10, 2, 10, 30, 3, 30, 60, math.inf, 60, 300, math.inf)
    )


def test_flags_win_over_variables_and_variables_over_defaults():
    environ = {"XLA_RUN_GRACE": "7", "XLA_RUN_HANG_TIMEOUT": "5m"}
    chosen = settings.timeouts(environ, grace_s=1.0, hang_kill_s=None)
    assert (chosen.grace_s, chosen.hang_kill_s, chosen.lost_s) == (1.0, 300.0, 10.0)


def test_a_process_started_with_the_timeouts_of_another_has_the_same():
    chosen = settings.timeouts({}, grace_s=1.5, beat_s=0.2)
    assert settings.timeouts(chosen.to_environ()) == chosen


def test_every_timeout_is_in_the_table_once():
    assert [row.field for row in settings.TIMEOUTS] == [field.name for field in fields(Timeouts)]
    assert len({row.variable for row in settings.TIMEOUTS}) == len(settings.TIMEOUTS)
    assert len({row.flag for row in settings.TIMEOUTS}) == len(settings.TIMEOUTS)
    assert settings.TIMEOUTS[0].default_s == 300.0


def test_durations_are_shown_as_the_docs_write_them():
    assert settings.show_seconds(300.0) == "300 s"
    assert settings.show_seconds(settings.OFF) == "off"


def test_the_environment_is_a_copy():
    assert settings.environment() == dict(os.environ)


def test_whole_numbers_are_checked_with_their_least():
    assert settings.integer({"N": " 3 "}, "N") == 3
    assert settings.integer({"N": ""}, "N") is None
    with pytest.raises(SettingError, match="N: '0' is no whole number from 1 up"):
        settings.integer({"N": "0"}, "N", least=1)
    with pytest.raises(SettingError, match="N: 'x' is no whole number from 0 up"):
        settings.integer({"N": "x"}, "N")


@pytest.mark.parametrize(("value", "on"), [("1", True), ("true", True), ("0", False), ("", False)])
def test_switches_are_read_as_torch_xla_reads_them(value, on):
    assert settings.flag({"X": value}, "X") is on


def test_records_go_to_the_users_own_directory_unless_one_is_named(tmp_path):
    own = f"xla-run-{os.getuid()}"
    assert settings.state_dir({"XLA_RUN_STATE_DIR": "/x/y"}) == Path("/x/y")
    assert settings.state_dir({"TMPDIR": "/scratch"}) == Path("/scratch") / own
    runtime = {"XDG_RUNTIME_DIR": str(tmp_path), "TMPDIR": "/scratch"}
    assert settings.state_dir(runtime) == tmp_path / "xla-run"
    assert settings.state_dir({**runtime, "XDG_RUNTIME_DIR": "/nowhere"}) == Path("/scratch") / own


def test_logs_go_to_a_disk_unless_a_directory_is_named(tmp_path):
    runtime = {"XDG_RUNTIME_DIR": str(tmp_path), "TMPDIR": "/scratch"}
    assert settings.log_root(runtime) == (Path(f"/scratch/xla-run-{os.getuid()}/logs"), False)
    assert settings.log_root({"XLA_RUN_STATE_DIR": "/x"}) == (Path("/x/logs"), False)
    assert settings.log_root({"XLA_RUN_LOG_DIR": "/l", "XLA_RUN_STATE_DIR": "/x"}) == (
        Path("/l"),
        True,
    )


@pytest.mark.parametrize(
    ("environ", "kind"),
    [
        ({"PJRT_DEVICE": "tpu"}, "TPU"),
        ({"PJRT_DEVICE": "CPU_X"}, "CPU"),
        ({"XRT_TPU_CONFIG": "localservice;0;localhost:51011"}, "TPU"),
        ({"XRT_DEVICE_MAP": "CPU:0;/job:x", "XRT_WORKERS": "x:0;y"}, "CPU"),
        ({"XRT_DEVICE_MAP": "CPU:0;/job:x"}, ""),
        ({"PJRT_SELECT_DEFAULT_DEVICE": "0"}, "CPU"),
        ({}, ""),
    ],
)
def test_old_and_new_names_ask_for_a_device(environ, kind):
    assert settings.asked_device(environ) == kind


def test_the_number_of_devices_is_asked_for_by_kind():
    environ = {"CPU_NUM_DEVICES": "4", "GPU_NUM_DEVICES": "2"}
    assert settings.asked_num_devices(environ, "CPU") == 4
    assert settings.asked_num_devices(environ, "CUDA") == 2
    assert settings.asked_num_devices(environ, "TPU") is None


def test_what_libtpu_writes_where_it_finds_no_tpu_is_no_fact(monkeypatch) -> None:
    warning = "WARNING: could not determine TPU worker number, please set env var `TPU_WORKER_ID`"
    monkeypatch.setenv("CLOUD_TPU_TASK_ID", warning)
    monkeypatch.setenv("TPU_WORKER_ID", "0")
    told = settings.environment()
    assert "CLOUD_TPU_TASK_ID" not in told and told["TPU_WORKER_ID"] == "0"
