"""`xla-run check` as it is typed: its options, its output, its exit codes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from terminals import CTRL_C, Terminal

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


def hangs_on(folder: Path, name: str) -> str:
    """An ssh to whose one host nothing comes."""
    ssh = folder / "ssh"
    ssh.write_text(
        STAND_IN.replace("\n", f'\ncase "$*" in *" {name} "*) exec sleep 300;; esac\n', 1)
    )
    ssh.chmod(0o755)
    return str(ssh)


def at_a_terminal(folder: Path, *words: str) -> Terminal:
    before = (sys.executable, "-m", "torch_xdist.launcher", "check")
    return Terminal([*before, *words], folder, {**os.environ, "TERM": "xterm"})


def test_a_terminal_shows_who_is_waited_for(tmp_path: Path) -> None:
    words = ("--hosts", "a,b", "--ssh-command", hangs_on(tmp_path, "b"), "--limit", "6")
    shown = at_a_terminal(tmp_path, *words)
    try:
        shown.wait_for("1 of 2 hosts answered; waiting for b", 20)
        rest = shown.read_to_the_end(20)
        assert "host b: no answer within 6 s; try ssh by hand" in rest
        assert "\x1b[31m!no answer\x1b[0m" in rest and shown.process.wait(5) == 73
    finally:
        shown.close()


def test_ctrl_c_ends_it_at_once(tmp_path: Path) -> None:
    words = ("--hosts", "a", "--ssh-command", hangs_on(tmp_path, "a"), "--limit", "60")
    shown = at_a_terminal(tmp_path, *words)
    try:
        shown.wait_for("0 of 1 hosts answered; waiting for a", 20)
        shown.type(CTRL_C)
        assert "Traceback" not in shown.read_to_the_end(10)
        assert shown.process.wait(5) == 130
    finally:
        shown.close()


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
