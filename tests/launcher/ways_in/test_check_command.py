"""`xla-run check` as it is typed: its options, its output, its exit codes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from torch_xdist.launcher.facts.errors import UsageError
from torch_xdist.launcher.ways_in.cli import cli

STAND_IN = '#!/bin/sh\nfor last; do :; done; exec sh -c "$last"\n'


def check(*words: str, **env: str) -> Result:
    return CliRunner().invoke(cli, ["check", *words], env={"PJRT_DEVICE": "CPU", **env})


def test_this_machine_can_run_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("import model")
    Path("model.py").write_text("")
    found = check("-n", "2", sys.executable, "train.py", "--lr", "1")
    assert found.exit_code == 0, found.output
    title, row, *_, last = found.output.splitlines()
    assert title.startswith("HOST") and " CODE " in title and " 2 files " in row
    assert last.startswith("a job can run on host ")


def test_json_has_everything_that_was_found() -> None:
    told = json.loads(check("--json").output)
    assert told["ok"] and told["exit_code"] == 0
    (host,) = told["hosts"]
    assert host["facts"]["versions"]["jax"] and host["facts"]["limits"]["open_files"]


def test_a_device_that_is_not_here_is_a_failure() -> None:
    found = check(PJRT_DEVICE="TPU")
    assert found.exit_code == 71
    assert "PJRT_DEVICE=TPU: this host has no TPU chip" in found.output
    assert "no job can run on host " in found.output


def test_a_script_that_does_not_exist_here_is_refused() -> None:
    found = check(sys.executable, "no_such.py")
    assert isinstance(found.exception, UsageError)
    assert "script 'no_such.py' does not exist in" in str(found.exception)


@pytest.mark.parametrize("limit", ["off", "0"])
def test_a_check_without_an_end_is_refused(limit: str) -> None:
    with pytest.raises(UsageError, match="--limit: a check has an end; give it seconds, such as"):
        raise check("--limit", limit).exception or AssertionError


def test_hosts_that_cannot_be_right_are_refused() -> None:
    assert "--hosts: host a stands there 2 times" in str(check("--hosts", "a,a").exception)


def test_a_host_needs_no_number_of_ranks(tmp_path: Path) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text(STAND_IN)
    ssh.chmod(0o755)
    found = check("--hosts", "a", "--ssh-command", str(ssh), "--limit", "30")
    assert found.exit_code == 0, found.output
    assert found.output.splitlines()[1].startswith("a ")


def test_the_help_teaches_and_the_list_of_commands_shows_it() -> None:
    text = check("--help").output
    for taught in ("xla-run check --hosts a,b -n 8 python train.py", "Exit codes: 0 a job could"):
        assert taught in text
    assert "check " in CliRunner().invoke(cli, ["--help"]).output


@pytest.mark.parametrize(("typed", "word"), [("che", "check"), ("check --no-b", "--no-bandwidth")])
def test_a_shell_completes_it(typed: str, word: str) -> None:
    words = typed.split()
    env = {
        "_XLA_RUN_COMPLETE": "bash_complete",
        "COMP_WORDS": f"xla-run {typed}",
        "COMP_CWORD": str(len(words)),
    }
    done = subprocess.run(
        [sys.executable, "-m", "torch_xdist.launcher"],
        env={**os.environ, **env}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert f"plain,{word}" in done.stdout.split()
