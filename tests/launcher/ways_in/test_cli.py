"""`xla-run`'s options, without a job."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from torch_xdist.launcher.facts.errors import UsageError
from torch_xdist.launcher.facts.job import Job
from torch_xdist.launcher.facts.settings import TIMEOUTS
from torch_xdist.launcher.ways_in.cli import cli
from torch_xdist.system.masking import masked


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--env", "1A=2"], r"--env '1A=2': the form X=Y is needed"),
        (["--tee", "0,7"], r"--tee '0,7': all, none, or ranks from 0 to 1 such as 0,2"),
        (["--job-id", "a/b"], "job id: 'a/b' cannot name a job"),
        (["--stdin", "2"], "--stdin 2: a rank from 0 to 1 is needed"),
        (["--env", "NO_SUCH_NAME"], "--env NO_SUCH_NAME: it is not set here; set it, or write NO"),
        (["--env-file", "/no/such"], "--env-file /no/such: it cannot be read: "),
        (["--once"], "--once runs the command as no rank; leave out -n, or --once"),
    ],
)
def test_options_that_cannot_be_right_are_refused(options: list[str], message: str) -> None:
    words = ["--nprocs", "2", *options, "--", "true"]
    found = CliRunner().invoke(cli, words, env={"PJRT_DEVICE": "CPU"})
    assert isinstance(found.exception, UsageError)
    with pytest.raises(UsageError, match=message):
        raise found.exception


def test_a_bad_duration_is_a_usage_error_of_its_flag() -> None:
    found = CliRunner().invoke(cli, ["--hang-timeout", "soon", "--", "true"])
    assert found.exit_code == 2 and "--hang-timeout: 'soon' is no duration" in found.output


def test_every_timeout_has_its_flag_in_the_help() -> None:
    text = CliRunner().invoke(cli, ["run", "--help"]).output
    assert all(row.flag in text and row.variable in text for row in TIMEOUTS)


def test_an_unknown_device_is_refused() -> None:
    found = CliRunner().invoke(cli, ["--", "true"], env={"PJRT_DEVICE": "NPU"})
    assert "PJRT_DEVICE='NPU' is unknown" in str(found.exception)


@pytest.mark.parametrize("count", ["0", "-1", "many"])
def test_a_number_of_ranks_that_is_none_is_refused(count: str) -> None:
    found = CliRunner().invoke(cli, ["-n", count, "true"])
    assert found.exit_code == 2
    assert f"'{count}': a whole number from 1 up is needed, or auto" in found.output


def dry_run(*words: str, **env: str) -> str:
    found = CliRunner().invoke(cli, ["--dry-run", *words], env={"PJRT_DEVICE": "CPU", **env})
    assert found.exit_code == 0, (found.output, found.exception)
    return found.output


@pytest.mark.parametrize(
    "option",
    [("-n", "2"), ("-n2",), ("-np", "2"), ("--nproc-per-node=2",), ("--nproc_per_node", "2")],
)
def test_the_number_of_ranks_is_known_by_the_names_of_other_launchers(option: tuple[str]) -> None:
    text = dry_run(*option, "true", "--fast")
    assert "2 ranks on 1 host, CPU (shared memory)" in text and "): true --fast" in text


def test_auto_is_one_rank_per_device() -> None:
    assert dry_run("-n", "auto", "true", CPU_NUM_DEVICES="3").startswith("3 ranks on 1 host")


def test_what_follows_the_command_is_its_own_also_where_we_know_the_option() -> None:
    text = dry_run("-n", "2", "true", "--lr", "1", "--log-dir", "x", "-n", "7", "--help")
    assert "): true --lr 1 --log-dir x -n 7 --help" in text
    assert "2 ranks" in text and "=x/" not in text


def test_a_dash_dash_before_the_command_is_no_part_of_it() -> None:
    assert "): true -- x" in dry_run("-n", "2", "--", "true", "--", "x")


def test_a_module_has_its_arguments() -> None:
    assert "): json.tool --lr 1" in dry_run("-n", "2", "-m", "json.tool", "--lr", "1")


def test_without_a_number_of_ranks_the_first_line_says_how_to_get_some() -> None:
    for words in (("true",), ("--once", "true")):
        assert dry_run(*words).startswith("1 process on 1 host, no rank (-n N makes ranks), CPU")


def test_a_dry_run_shows_the_cores_of_each_rank() -> None:
    assert "rank 0 (cores " in dry_run("-n", "1", "true")


def test_variables_come_from_here_from_files_and_from_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "env"
    file.write_text("# a comment\n\nexport A=1\nB='two words'\nC=3=3\n")
    text = dry_run("--env-file", str(file), "--env", "C=4", "--env", "HERE", "true", HERE="so")
    for row in ("A=1", "B=two words", "C=4", "HERE=so"):
        assert f"  {row}\n" in text
    file.write_text("A=1\nnot a variable\n")
    found = CliRunner().invoke(cli, ["--env-file", str(file), "true"])
    assert "env, line 2: the form X=Y is needed" in str(found.exception)


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("HF_TOKEN", "abc", "***"),
        ("XLA_RUN_SECRET", "00", "***"),
        ("STORE", "postgres://u:pw@db:5432/x", "postgres://***@db:5432/x"),
        ("PROXY", "http://u:p%40w@proxy:8080", "http://***@proxy:8080"),
        ("MAIL", "a@b.c", "a@b.c"),
        ("PLAIN", "http://host/path@2", "http://host/path@2"),
    ],
)
def test_secrets_are_masked_by_name_and_in_addresses(name: str, value: str, shown: str) -> None:
    assert masked(name, value) == shown


def test_a_dry_run_masks_secrets_in_the_command_too() -> None:
    assert "pw" not in dry_run("-n", "1", "true", "redis://:pw@host/0")


def test_h_is_help() -> None:
    short, long = (CliRunner().invoke(cli, [option]).output for option in ("-h", "--help"))
    assert short == long and "Commands:" in short


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (
            {"TPU_WORKER_ID": "1", "TPU_WORKER_HOSTNAMES": "a,b", "PJRT_DEVICE": ""},
            "this is host 1 of 2 of a TPU slice: ranks of several hosts are joined by xmp.spawn in",
        ),
        (
            {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"},
            r"this is rank 1 of 2 of the environment \(RANK\) already, so -n would start ranks in",
        ),
    ],
)
def test_ranks_of_other_launchers_are_not_multiplied(env: dict[str, str], words: str) -> None:
    found = CliRunner().invoke(cli, ["-n", "4", "true"], env={"PJRT_DEVICE": "CPU", **env})
    assert isinstance(found.exception, UsageError)
    with pytest.raises(UsageError, match=words):
        raise found.exception


def test_a_job_that_does_not_run_is_named_with_those_that_do(tmp_path: Path) -> None:
    env = {"XLA_RUN_STATE_DIR": str(tmp_path)}
    found = CliRunner().invoke(cli, ["stop", "gone"], env=env)
    assert "job 'gone': no such job runs; there: none" in str(found.exception)
    found = CliRunner().invoke(cli, ["logs", "gone"], env=env)
    assert "job 'gone': no such job is known; there: none" in str(found.exception)


def test_a_job_survives_its_journey() -> None:
    spec = Job("script", ["a.py"], 3, env={"A": "1"}, max_restarts=2)
    assert Job.from_json(spec.to_json()) == spec
