"""`--on HOST`, with a stand-in for ssh: what is typed, what comes back, what can go wrong."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from processes import kill_marked

from torch_xdist.launcher.facts import registry
from torch_xdist.launcher.facts.errors import ExitCode, HostError
from torch_xdist.launcher.facts.host_list import Host
from torch_xdist.launcher.viewing import elsewhere
from torch_xdist.launcher.viewing.elsewhere import Command, Elsewhere
from torch_xdist.launcher.ways_in.cli import cli
from torch_xdist.system import process_tree

XLA_RUN = (sys.executable, "-m", "torch_xdist.launcher")
# Its last word is the line for the shell there.
SSH = 'for last; do :; done\nexec sh -c "$last"\n'
WAITS = """
print("first of", RANK, flush=True)
say("up%d" % RANK)
threading.Event().wait()
"""


def ssh_of(folder: Path, script: str = SSH) -> str:
    path = folder / "ssh"
    path.write_text(f"#!/bin/sh\n{script}")
    path.chmod(0o700)
    return str(path)


def ask(job, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*XLA_RUN, *words, "--on", "me@there:22", "--ssh-command", ssh_of(job.folder)],
        env={**os.environ, "XLA_RUN_STATE_DIR": str(job.folder)},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_commands_do_there_what_they_do_here(start: Callable) -> None:
    job = start(WAITS, "-n", "2", "--job-id", "far")
    job.wait_for("up0")
    job.wait_for("up1")
    (row,) = [json.loads(line) for line in ask(job, "ps", "--json").stdout.splitlines()]
    assert (row["job"], row["state"]) == ("far", "running")
    end_s = time.monotonic() + 20  # the file gets it a little later than the rank has said it
    while (said := ask(job, "logs", "-n", "1", "--rank", "1", "far").stdout) != "first of 1\n":
        assert time.monotonic() < end_s, said
    assert "rank 1:" in ask(job, "stack", "far").stdout
    unknown = ask(job, "stack", "near")
    assert unknown.returncode == ExitCode.USAGE and "no such job runs; there: far" in unknown.stderr
    look = subprocess.Popen(
        [*XLA_RUN, "attach", "far", "--from-start", "--on", "a", "--ssh-command"]
        + [ssh_of(job.folder)],
        env={**os.environ, "XLA_RUN_STATE_DIR": str(job.folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert look.stdout is not None and "first of" in look.stdout.readline()
    assert ask(job, "stop", "far").stdout == "job far: stopped\n"
    _, err = look.communicate(timeout=30)
    assert look.returncode == job.end().code == 143 and "stopped by SIGTERM" in err


def looking(start: Callable) -> tuple:
    """A job, and somebody who follows its logs from afar."""
    job = start(WAITS, "-n", "1", "--job-id", "far")
    job.wait_for("up0")
    mark = f"{job.mark}-viewer"
    name, value = mark.split("=")
    words = [*XLA_RUN, "attach", "far", "--from-start", "--on", "a"]
    look = subprocess.Popen(
        [*words, "--ssh-command", ssh_of(job.folder)],
        env={**os.environ, "XLA_RUN_STATE_DIR": str(job.folder), name: value},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert look.stdout is not None and look.stdout.readline() == "first of 0\n"
    return job, look, mark


def gone(mark: str, limit_s: float) -> bool:
    end_s = time.monotonic() + limit_s
    while process_tree.marked(mark):
        if time.monotonic() > end_s:
            return False
        time.sleep(0.05)
    return True


def test_ctrl_c_detaches_there(start: Callable) -> None:
    job, look, mark = looking(start)
    look.send_signal(signal.SIGINT)
    _, err = look.communicate(timeout=30)
    assert look.returncode == ExitCode.INTERRUPTED and "xla-run stop --on a far" in err
    assert gone(mark, 10.0) and job.process.poll() is None


def test_nothing_is_left_there_where_this_side_is_killed(start: Callable) -> None:
    job, look, mark = looking(start)
    try:
        assert len(process_tree.marked(mark)) > 1
        look.kill()
        look.communicate(timeout=30)
        assert gone(mark, 10.0) and job.process.poll() is None
    finally:
        kill_marked(mark)


def command(script: str, folder: Path, python: str = sys.executable) -> list[bytes]:
    asked = Elsewhere(Host("a"), [ssh_of(folder, script)], python, ["ps"])
    return list(Command(asked).lines(lambda line: None))


@pytest.mark.parametrize(
    ("script", "python", "words"),
    [
        ("echo 'ssh: no route' >&2; exit 255", "py", "host a: ssh cannot reach it: ssh: no route"),
        (SSH, "/no/python", "host a: /no/python cannot be started there: .*--python"),
        (
            "echo No module named torch_xdist >&2; exit 1",
            "py",
            "host a: py there has no torch-xdist such as this one .*--python",
        ),
        ("echo hm; exit 3", "py", "host a: py ended there with code 3 before it answered: hm"),
        (
            """printf '\\001xla-run {"version": "0.0.1"}\\n'""",
            "py",
            "host a: torch-xdist 0.0.1 is there, and .* here; install the same on both",
        ),
    ],
)
def test_what_is_wrong_there_is_said(tmp_path: Path, script: str, python: str, words: str) -> None:
    with pytest.raises(HostError, match=words):
        command(script, tmp_path, python)


def test_a_host_that_does_not_answer_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elsewhere, "_HELLO_S", 0.5)
    with pytest.raises(HostError, match="host a: no answer in 0 s; try `ssh a` by hand"):
        command("exec sleep 99", tmp_path)


def test_a_connection_that_is_lost_later_is_told(tmp_path: Path) -> None:
    script = f"""printf '\\001xla-run {{"version": "{elsewhere.__version__}"}}\\nhere\\n'
    echo 'client_loop: send disconnect: Broken pipe' >&2; exit 255"""
    asked = Elsewhere(Host("a"), [ssh_of(tmp_path, script)], "py", ["ps"])
    begun = Command(asked)
    assert list(begun.lines(lambda line: None)) == [b"here\n"]
    with pytest.raises(HostError, match="host a: the connection was lost: client_loop"):
        begun.exit_code()


def test_what_it_says_on_stderr_is_shown_although_it_comes_before_its_hello(
    tmp_path: Path,
) -> None:
    script = f"""echo 'welcome to a' >&2
    printf '\\001xla-run \\n' >&2; echo 'no such job' >&2; sleep 0.5
    printf '\\001xla-run {{"version": "{elsewhere.__version__}"}}\\n'; exit 2"""
    asked = Elsewhere(Host("a"), [ssh_of(tmp_path, script)], "py", ["ps"])
    begun, shown = Command(asked), []
    assert not list(begun.lines(shown.append))
    assert (shown, begun.exit_code()) == ([b"no such job\n"], 2)


def test_without_ssh_here_it_is_named(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="host a: /no/ssh cannot be started here"):
        Command(Elsewhere(Host("a"), ["/no/ssh"], "py", ["ps"]))


def words_of(*typed: str) -> list[str]:
    """What is asked for there."""
    ctx = cli.commands[typed[0]].make_context(typed[0], [*typed[1:]])
    return list(ctx.meta["words"])


def test_what_was_typed_goes_there_but_for_what_says_where() -> None:
    typed = ("logs", "--on", "a", "-f", "--since", "10m", "-n", "3", "--python=x", "job")
    assert words_of(*typed) == ["--follow", "--since=10m", "--tail=3", "--", "job"]
    assert words_of("stop", "--now", "--on=a", "job") == ["--now", "--", "job"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--on", "a,b"), "--on a,b: 2 hosts; name the one where the job was started"),
        (("--python", "x"), "--python and --ssh-command are for another host; give --on HOST too"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: tuple[str, ...], words: str) -> None:
    done = subprocess.run([*XLA_RUN, "ps", *options], capture_output=True, text=True, timeout=60)
    assert done.returncode == ExitCode.USAGE and words in done.stderr


@pytest.mark.parametrize(("on", "found"), [("", ["far"]), ("a", [])])
def test_a_shell_completes_the_jobs_of_this_machine_alone(
    on: str, found: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "running", lambda _: [{"job": "far"}, {"job": "near"}])
    each = cli.commands["stop"]
    words = ["--on", on] if on else []
    with each.make_context("stop", words, resilient_parsing=True) as ctx:
        (name,) = [param for param in each.params if param.name == "name"]
        assert [item.value for item in name.shell_complete(ctx, "f")] == found
