"""`xla-run --ray`: how many nodes and ranks, and what would be asked of Ray."""

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from torch_xdist.launcher.facts import settings
from torch_xdist.launcher.facts.errors import UsageError
from torch_xdist.launcher.ways_in.cli import cli

GOLDEN = Path(__file__).with_name("dry_run_of_ray.txt")


def invoked(*words: str, **env: str) -> Result:
    here = {name: None for name in settings.passed_on(settings.environment())}
    return CliRunner().invoke(cli, [*words], env={**here, **env})


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--ray", "-n", "2"], "--ray: how many nodes of the cluster is not said; give --nodes N"),
        (["--ray", "--nodes", "2"], "--ray: how many ranks each node gets is not said; give -n N"),
        (["--ray", "--nodes", "2", "-n", "1", "--requeue"], "are for a Slurm job; leave them out"),
        (["--ray-address", "a:1", "-n", "1"], "are for a Ray cluster; give --ray too"),
        (["--ray", "--hosts", "a", "-n", "1"], "--hosts and --ray both name the hosts; leave one"),
        (
            ["--ray", "--nodes", "1", "-n", "1", "--ray-resources", "4"],
            "--ray-resources '4': a JSO",
        ),
    ],
)
def test_what_cannot_be_right_is_refused(words: list[str], told: str) -> None:
    error = invoked(*words, "true").exception
    assert isinstance(error, UsageError) and told in str(error)


def test_a_dry_run_shows_what_ray_is_asked_for_and_the_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    words = ["--ray", "--nodes", "2", "--gpus-per-node", "2", "--ray-address", "10.0.0.1:6379"]
    words += ["--ray-resources", '{"TPU": 4}', "--env", "API_KEY=hush", "--job-id", "golden"]
    found = invoked(*words, "--dry-run", "train.py", "--lr", "1", XLA_FLAGS="--x")
    assert found.exit_code == 0, (found.output, found.exception)
    text = found.output.replace(sys.executable, "/opt/venv/bin/python")
    assert text.replace(str(tmp_path), "/data/job") == GOLDEN.read_text()
    assert "hush" not in text
