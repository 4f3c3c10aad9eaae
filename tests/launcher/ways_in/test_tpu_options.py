"""`--tpu` and what goes with it: refused before anything starts, or printed by --dry-run."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from gcloud_stand_in import V4_16, Gcloud

from torch_xdist.launcher.facts import settings
from torch_xdist.launcher.facts.errors import HostError, UsageError
from torch_xdist.launcher.ways_in.cli import cli

GOLDEN = Path(__file__).with_name("dry_run_of_tpu.txt")


def invoked(folder: Path, *words: str, **env: str) -> Result:
    here = {name: None for name in settings.passed_on(settings.environment())}
    gcloud = Gcloud(folder, {"pod": V4_16, "old": {**V4_16, "state": "PREEMPTED"}})
    env = {**here, "PATH": gcloud.path, "XLA_RUN_STATE_DIR": "/s", **env}
    return CliRunner().invoke(cli, [*words], env=env)


def test_a_dry_run_asks_gcloud_alone_and_shows_the_exact_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["--dry-run", "--tpu", "me@pod", "--zone", "us-central2-b", "--project", "p", "-n", "1"]
    found = invoked(
        tmp_path, *words, "--job-id", "golden", "--python", "/opt/venv/bin/python", "true"
    )
    assert found.exit_code == 0, (found.output, found.exception)
    assert found.output.replace(str(tmp_path), "/data/job") == GOLDEN.read_text()
    calls = Gcloud.calls(Gcloud(tmp_path, {}))
    where = ["--zone=us-central2-b", "--project=p"]
    assert calls == [["compute", "tpus", "tpu-vm", "describe", "pod", *where, "--format=json"]]


def test_without_a_number_there_is_a_rank_for_each_chip(tmp_path: Path) -> None:
    text = invoked(tmp_path, "--dry-run", "--tpu", "pod", "true").output
    assert text.startswith("8 ranks on 2 hosts; ")
    assert text.count("rank ") == 8 and "--zone" not in text


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--zone", "z", "-n", "1"], "--zone and --project say where a TPU VM is; give --tpu NAME"),
        (["--tpu", "pod:22"], "--tpu pod:22: a TPU has a name and no port; write a,b or me@a"),
        (["--tpu", "pod,pod"], "--tpu: host pod stands there 2 times"),
        (["--tpu", "pod", "--hosts", "a"], "--hosts and --tpu both name the hosts; leave one out"),
        (["--tpu", "pod", "--once"], "--once runs the command on this host; leave out --once, or"),
    ],
)
def test_what_cannot_be_right_is_refused(tmp_path: Path, words: list[str], told: str) -> None:
    error = invoked(tmp_path, *words, "true").exception
    assert isinstance(error, UsageError) and told in str(error)


def test_a_tpu_that_is_not_ready_is_told_before_anything_starts(tmp_path: Path) -> None:
    error = invoked(tmp_path, "--tpu", "pod,old", "true").exception
    assert isinstance(error, HostError)
    assert "TPU old is PREEMPTED, and READY is needed; delete it and create it again" in str(error)
