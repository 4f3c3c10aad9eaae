"""`--hosts` and what goes with it: refused before anything starts, or printed by --dry-run."""

import os
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from dry_runs import dry_run

from torch_xdist.launcher.facts import settings
from torch_xdist.launcher.facts.errors import LauncherError, SettingError, UsageError
from torch_xdist.launcher.ways_in.cli import cli

GOLDEN = Path(__file__).with_name("dry_run_of_hosts.txt")


def refused(*words: str, **env: str) -> LauncherError:
    found = CliRunner().invoke(cli, [*words, "--", "true"], env=env)
    assert isinstance(found.exception, LauncherError), found.output
    return found.exception


@pytest.mark.parametrize(
    ("words", "env", "told"),
    [
        (["--hosts", "a,a", "-n", "1"], {}, "--hosts: host a stands there 2 times"),
        (["--hosts", "t[2-1]", "-n", "1"], {}, "--hosts: '2-1' in 't[2-1]' is no range"),
        (["--hosts", "a"], {}, "host a: how many ranks it gets is not said; give -n N for"),
        (["--hosts", "a", "-n", "auto"], {}, "is not said by -n auto, which counts the de"),
        (["--hostfile", "/no/such", "-n", "1"], {}, "--hostfile /no/such: it cannot be read: "),
        (["--hosts", "a", "--hostfile", "f", "-n", "1"], {}, "--hosts and --hostfile both name"),
        (["--hosts", "a", "--once"], {}, "--once runs the command on this host; leave out --o"),
        (["--hosts", "a", "-n", "2", "--stdin", "0"], {}, "--stdin 0: a rank of another host ca"),
        (
            ["--hosts", "a,b", "-n", "2"],
            {"XDIST_TRANSPORT": "host"},
            "XDIST_TRANSPORT=host: 2 hosts share no memory; unset it",
        ),
        (["--hosts", "a", "-n", "1"], {"PJRT_DEVICE": "NPU"}, "PJRT_DEVICE='NPU' is unknown"),
    ],
)
def test_hosts_that_cannot_be_right_are_refused(
    words: list[str], env: dict[str, str], told: str
) -> None:
    error = refused(*words, **env)
    assert isinstance(error, UsageError) and told in str(error)


def test_a_command_for_ssh_that_is_none_is_refused() -> None:
    error = refused("--hosts", "a", "-n", "1", "--ssh-command", "ssh 'x")
    assert isinstance(error, SettingError)
    assert 'XLA_RUN_SSH: "ssh \'x" is no command line (No closing quotation); write' in str(error)


def test_an_empty_list_is_refused() -> None:
    assert "--hosts: no host in ','" in str(refused("--hosts", ",", "-n", "1"))


@pytest.mark.parametrize(
    "option",
    ["--hosts", "--hostfile", "--tpu", "--master-addr", "--ray-address", "--ship", "--k8s"],
)
def test_an_empty_variable_of_the_shell_is_no_job_on_this_host(option: str) -> None:
    for words in ([option, ""], [f"{option}="], [option, " "]):
        found = CliRunner().invoke(cli, [*words, "-n", "1", "--", "true"])
        assert found.exit_code == 2, found.output
        assert f"Invalid value for '{option}" in found.output
        assert "it is empty; name something, such as " in found.output


@pytest.mark.parametrize("command", ["ps", "attach", "logs", "stack", "stop"])
def test_an_empty_host_is_no_reason_to_look_here(command: str) -> None:
    found = CliRunner().invoke(cli, [command, "--on", ""])
    assert found.exit_code == 2, found.output
    assert "--on': it is empty; name something, such as me@login" in found.output


def test_a_dry_run_shows_hosts_ranks_variables_and_commands(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "hosts").write_text("a slots=2\nme@b:2222 slots=1\n")
    env = {"API_KEY": "hush", "XLA_FLAGS": "--x", "XLA_RUN_STATE_DIR": "/s"}
    # `python` is this one, as in an activated environment.
    env["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    options = ["--hostfile", "hosts", "--env", "API_KEY", "--env", "DB=pg://me:pw@db", "--job-id"]
    text = dry_run(tmp_path, *options, "golden", "--python", "python3", "python", "train.py", **env)
    assert text == GOLDEN.read_text()
    assert "hush" not in text and "pw" not in text


def test_an_option_wins_over_the_variable_for_ssh(tmp_path: Path) -> None:
    words = ["--hosts", "a", "-n", "1"]
    env = {"XLA_RUN_SSH": "ssh -F mine"}
    assert "$ ssh -F mine -T" in dry_run(tmp_path, *words, "true", **env)
    given = dry_run(tmp_path, *words, "--ssh-command", "ssh -F its", "true", **env)
    assert "$ ssh -F its -T" in given


def test_what_names_a_place_of_this_machine_stays_here() -> None:
    environ = {
        "XLA_FLAGS": "--x",
        "PYTHONPATH": "/p",
        "XLA_RUN_PREIMPORT": "torch",
        "XLA_RUN_SECRET": "00",
        "XLA_RUN_STATE_DIR": "/s",
        "PYTHONHOME": "/h",
        "CUDA_VISIBLE_DEVICES": "1",
        "TPU_WORKER_ID": "0",
        "HOME": "/me",
    }
    kept = settings.passed_on(environ)
    assert list(kept) == ["XLA_FLAGS", "PYTHONPATH", "XLA_RUN_PREIMPORT"]
