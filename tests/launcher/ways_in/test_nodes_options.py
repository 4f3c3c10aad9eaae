"""`--nnodes` and what goes with it: refused before anything starts, or printed by --dry-run."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from dry_runs import dry_run

from torch_xdist.launcher.facts.errors import LauncherError, SettingError, UsageError
from torch_xdist.launcher.ways_in.cli import cli

GOLDEN = Path(__file__).with_name("dry_run_of_node.txt")
TWO = ["--nnodes", "2"]
FIRST = [*TWO, "--node-rank", "0", "--master-addr", "a"]


def refused(*words: str, **env: str | None) -> LauncherError:
    here = {"MASTER_ADDR": None, "MASTER_PORT": None, "XLA_RUN_SECRET": None}
    found = CliRunner().invoke(cli, [*words, "--", "true"], env={**here, **env})
    assert isinstance(found.exception, LauncherError), found.output
    return found.exception


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([*TWO, "-n", "1", "--master-addr", "a"], "--nnodes 2: which of them this is is not said"),
        (
            [*TWO, "-n", "1", "--master-addr", "a", "--node-rank", "2"],
            "--node-rank 2: with --nnodes 2 a number from 0 to 1 is needed",
        ),
        (
            [*TWO, "-n", "1", "--node-rank", "0"],
            "--nnodes 2: where node 0 is is not said; give --master-addr HOST, the same on all",
        ),
        (["--node-rank", "0", "-n", "1"], "--node-rank, --master-addr and --master-port belong t"),
        (FIRST, "host node0: how many ranks it gets is not said; give -n N for every host"),
        ([*FIRST, "-n", "1", "--hosts", "a"], "--hosts and --nnodes both name the hosts"),
        ([*FIRST, "--once"], "--once runs the command on this host; leave out --once, or the"),
        ([*FIRST, "-n", "2", "--stdin", "0"], "--stdin 0: a rank of another host cannot read"),
    ],
)
def test_nodes_that_cannot_be_right_are_refused(words: list[str], told: str) -> None:
    error = refused(*words)
    assert isinstance(error, UsageError) and told in str(error)


@pytest.mark.parametrize("node", ["0", "1"])
@pytest.mark.parametrize(
    ("secret", "told"),
    [
        (None, "XLA_RUN_SECRET: it is not set; nodes know each other by it: make one (python -c "),
        ("abc", "XLA_RUN_SECRET: 32 hexadecimal digits or more are needed; nodes know each other"),
        ("x" * 64, "XLA_RUN_SECRET: 32 hexadecimal digits or more are needed"),
    ],
)
def test_nodes_need_a_secret_that_nobody_guesses(node: str, secret: str | None, told: str) -> None:
    words = [*TWO, "--node-rank", node, "--master-addr", "127.0.0.1", "-n", "1"]
    error = refused(*words, XLA_RUN_SECRET=secret)
    assert isinstance(error, SettingError) and told in str(error)
    assert "abc" not in str(error) and "xxx" not in str(error)


def test_a_dry_run_shows_the_part_of_this_node(tmp_path: Path) -> None:
    words = [*TWO, "--node-rank", "1", "--master-addr", "a", "-n", "1", "--job-id", "golden"]
    env = {"API_KEY": "hush", "XLA_RUN_SECRET": "5e" * 32}
    text = dry_run(tmp_path, *words, "--env", "API_KEY", "true", **env)
    assert text == GOLDEN.read_text()
    assert "hush" not in text and "5e5e" not in text


def test_a_dry_run_of_node_0_says_where_it_listens(tmp_path: Path) -> None:
    text = dry_run(tmp_path, *FIRST, "-n", "1", "--master-port", "4711", "true")
    assert "this is node 0: it listens at a:4711 for the others" in text


def test_the_variables_of_torchrun_say_where_node_0_is(tmp_path: Path) -> None:
    words = [*TWO, "--node_rank", "1", "--nproc_per_node", "1", "true"]
    text = dry_run(tmp_path, *words, MASTER_ADDR="m", MASTER_PORT="4712")
    assert "this is node 1: it comes to node 0 at m:4712" in text


def test_a_pod_of_a_jobset_may_be_a_node(tmp_path: Path) -> None:
    env = {"JOB_COMPLETION_INDEX": "1", "NUM_PROCESSES": "2", "MASTER_ADDR": "m"}
    words = [*TWO, "--node-rank", "1", "--master-addr", "m", "-n", "1", "true"]
    assert "this is node 1" in dry_run(tmp_path, *words, **env)


def test_one_node_is_a_job_of_this_host(tmp_path: Path) -> None:
    text = dry_run(tmp_path, "--nnodes", "1", "--node-rank", "0", "-n", "1", "true")
    assert "host 0: this host" in text
