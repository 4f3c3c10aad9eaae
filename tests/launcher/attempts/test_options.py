"""`--spares`, `--min-hosts`, `--max-preemptions`, `--nnodes MIN:MAX`: refused, or printed."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from torch_xdist.launcher.attempts.options import GoingOn
from torch_xdist.launcher.facts.errors import LauncherError, UsageError
from torch_xdist.launcher.facts.host_list import Host
from torch_xdist.launcher.ways_in.cli import cli

HOSTS = ["--hosts", "a,b,c", "-n", "1"]
NODES = ["--node-rank", "0", "--master-addr", "127.0.0.1", "-n", "1"]


def refused(*words: str) -> LauncherError:
    found = CliRunner().invoke(cli, [*words, "--", "true"])
    assert isinstance(found.exception, LauncherError), found.output
    return found.exception


def printed(*words: str) -> str:
    found = CliRunner().invoke(cli, ["--dry-run", *words, "--", "true"])
    assert found.exit_code == 0, (found.output, found.exception)
    return found.output


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["-n", "2", "--spares", "1"], "--spares: for hosts that are named by --hosts, --hostfile"),
        ([*NODES, "--nnodes", "2", "--min-hosts", "1"], "--min-hosts: for hosts that are named by"),
        ([*HOSTS, "--spares", "3"], "--spares 3: 3 hosts are named, and one at least is no spare"),
        (
            [*HOSTS, "--spares", "1", "--min-hosts", "3"],
            "--min-hosts 3: a number from 1 to 2 is needed, as many as there are hosts that are no",
        ),
        ([*HOSTS, "--elastic-wait", "5"], "--elastic-wait: for fewer nodes than all; give --nnod"),
        ([*NODES, "--nnodes", "2", "--elastic-wait", "5"], "--elastic-wait: for fewer nodes than"),
        (["--ray", "--nodes", "2", "-n", "1", "--spares", "1"], "and Ray chooses its own"),
    ],
)
def test_what_cannot_be_right_is_refused(words: list[str], told: str) -> None:
    error = refused(*words)
    assert isinstance(error, UsageError) and told in str(error)


@pytest.mark.parametrize("count", ["0", "2:1", "1:", ":2", "a", "1:2:3", "-1", "0:2"])
def test_a_range_of_nodes_that_is_none_is_refused(count: str) -> None:
    found = CliRunner().invoke(cli, [*NODES, "--nnodes", count, "--", "true"])
    assert found.exit_code == 2
    assert "Invalid value for '--nnodes'" in found.output


def test_a_slice_of_several_workers_has_no_spare() -> None:
    workers = [Host("t-w0", slots=1, worker=0), Host("t-w1", slots=1, worker=1)]
    with pytest.raises(UsageError, match="--min-hosts: a TPU slice of several workers runs on all"):
        GoingOn(min_hosts=1).shared_out(workers, are_named=True)


def test_preemptions_have_a_budget_where_hosts_may_be_left_out() -> None:
    assert GoingOn().preemptions(0) is None
    assert GoingOn(spares=1).preemptions(0) == GoingOn().preemptions(1) == 10
    assert GoingOn(spares=1, max_preemptions=0).preemptions(0) == 0
    assert GoingOn(max_preemptions=3).preemptions(0) == 3


def test_a_dry_run_shows_the_spares_and_how_many_hosts_are_needed() -> None:
    told = printed(*HOSTS, "--spares", "1", "--min-hosts", "1")
    assert told.startswith("2 ranks on 2 hosts;")
    assert "spare 0: c\n  $ ssh " in told
    assert told.endswith("at least 1 of 2 hosts are needed\n")


def test_a_dry_run_of_a_node_shows_the_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XLA_RUN_SECRET", "5e" * 32)
    assert "3 ranks on 2:3 nodes; " in printed(*NODES, "--nnodes", "2:3")
    assert "3 ranks on 3 nodes; " in printed(*NODES, "--nnodes", "3:3")
