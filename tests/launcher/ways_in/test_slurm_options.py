"""`xla-run --slurm`: which nodes, refused or not; and the script of a new job."""

import os
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from torch_xdist.launcher.facts import settings
from torch_xdist.launcher.facts.errors import LauncherError, PreflightError, UsageError
from torch_xdist.launcher.ways_in.cli import cli

GOLDEN = Path(__file__).with_name("dry_run_of_slurm.txt")
INSIDE = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[08-09],gpu1"}
NEW = ["--slurm", "--nodes", "2", "-n", "1"]


def invoked(*words: str, **env: str) -> Result:
    here = {name: None for name in settings.passed_on(settings.environment())}
    return CliRunner().invoke(cli, [*words], env={**here, **env})


def refused(*words: str, **env: str) -> LauncherError:
    found = invoked(*words, "true", **env)
    assert isinstance(found.exception, LauncherError), found.output
    return found.exception


def printed(*words: str, **env: str) -> str:
    found = invoked(*words, **env)
    assert found.exit_code == 0, (found.output, found.exception)
    return found.output


@pytest.mark.parametrize(
    ("words", "env", "told"),
    [
        (["--slurm", "-n", "1"], {}, "--slurm: this is inside no Slurm job (SLURM_JOB_ID is not"),
        (NEW, INSIDE, "--nodes 2: it submits a new Slurm job, and this is inside job 7; leave it"),
        (["--slurm"], INSIDE, "host n08: how many ranks it gets is not said; give -n N for every"),
        (["--slurm", "--hosts", "a", "-n", "1"], INSIDE, "--hosts and --slurm both name the hosts"),
        (["--slurm", "--once"], INSIDE, "--once runs the command on this host; leave out --once"),
        (["--nodes", "2", "-n", "1"], {}, "they describe a new Slurm job; give --slurm too, or l"),
        (
            ["--slurm", "--requeue", "-n", "1"],
            INSIDE,
            "are for a new Slurm job; give --nodes N too",
        ),
        ([*NEW, "--sbatch-options", "--x 'y"], {}, '--sbatch-options: "--x \'y" is no command lin'),
        (
            ["--slurm", "-n", "1"],
            {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1"},
            "SLURM_JOB_NODELIST: 'n[1' cannot be read; a list such as tux[1-3],head is needed",
        ),
    ],
)
def test_what_cannot_be_right_is_refused(words: list[str], env: dict[str, str], told: str) -> None:
    error = refused(*words, **env)
    assert told in str(error) and error.exit_code == 2


def test_inside_a_job_the_hosts_are_its_nodes() -> None:
    text = printed("--slurm", "-n", "2", "--dry-run", "true", **INSIDE)
    assert [line for line in text.splitlines() if line.startswith("host ")] == [
        *("host 0: n08", "host 1: n09", "host 2: gpu1"),
    ]
    assert "  $ srun --jobid=7 --overlap --nodes=1" in text and "--nodelist=gpu1 " in text
    assert "XLA_RUN_CONTROL=slurm:HEAD" in text


def test_a_dry_run_of_a_new_job_shows_its_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    words = ["--slurm", "--nodes=4", "-n", "8", "--gpus-per-node", "8", "--requeue", "--dry-run"]
    words += ["--sbatch-options", "--time=2:00:00 --account='my team'", "--env", "API_KEY=hush"]
    words += ["--graceful-stop", "2m", "--", "train.py", "--nodes", "3", "a b"]
    text = printed(*words).replace(sys.executable, "/opt/venv/bin/python")
    assert text.replace(str(tmp_path), "/data/job") == GOLDEN.read_text()


def test_cores_that_the_user_asks_for_are_no_whole_nodes() -> None:
    text = printed(*NEW, "--sbatch-options", "--cpus-per-task=4", "--dry-run", "true")
    assert "#SBATCH --cpus-per-task=4" in text and "--exclusive" not in text
    assert "#SBATCH --exclusive\n#SBATCH --no-requeue\n" in printed(*NEW, "--dry-run", "true")


def test_a_stop_without_a_limit_is_announced_as_early_as_slurm_can() -> None:
    text = printed(*NEW, "--graceful-stop", "off", "--dry-run", "true")
    assert "#SBATCH --signal=B:TERM@65535" in text


def stand_in(folder: Path, script: str) -> dict[str, str]:
    """An sbatch that runs this, first on PATH."""
    path = folder / "sbatch"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def test_a_new_job_is_handed_to_sbatch_and_its_number_printed(tmp_path: Path) -> None:
    env = stand_in(tmp_path, f"cat > {tmp_path}/script; echo \"$@\" >&2; echo '12;here'")
    assert printed(*NEW, "true", **env) == "12\n"
    assert (tmp_path / "script").read_text().endswith(" --slurm -n 1 true\n")


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("echo 'sbatch: error: Invalid partition' >&2; exit 1", "sbatch: error: Invalid partition"),
        ("exit 3", "it ended with code 3"),
    ],
)
def test_a_job_that_sbatch_refuses_is_told_in_its_words(
    tmp_path: Path, script: str, told: str
) -> None:
    error = refused(*NEW, **stand_in(tmp_path, script))
    assert isinstance(error, PreflightError)
    assert str(error) == f"--slurm: sbatch refuses the job: {told}"


def test_a_machine_without_sbatch_is_told(tmp_path: Path) -> None:
    (tmp_path / "true").symlink_to("/bin/true")
    error = refused(*NEW, PATH=str(tmp_path))
    assert isinstance(error, PreflightError)
    assert "--slurm: sbatch cannot be started here (No such file or directory); run" in str(error)


def test_a_wrong_command_is_told_before_it_is_submitted() -> None:
    found = invoked(*NEW, "no_such.py")
    assert isinstance(found.exception, UsageError), found.output
    assert "script 'no_such.py' does not exist" in str(found.exception)
