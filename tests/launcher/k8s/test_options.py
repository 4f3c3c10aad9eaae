"""`xla-run --k8s`: what is refused, and the command line that becomes one inside the pods."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from torch_xdist.launcher.facts.errors import UsageError
from torch_xdist.launcher.k8s.options import Asked, wait_s
from torch_xdist.launcher.ways_in.cli import cli

NEW = ["--k8s", "train", "--image", "reg/t:1"]


def invoked(*words: str, **env: str) -> Result:
    return CliRunner().invoke(cli, [*words], env={"XLA_RUN_STATE_DIR": "/s", **env})


def printed(*words: str, **env: str) -> list[dict[str, Any]]:
    found = invoked(*NEW, "--print", *words, **env)
    assert found.exit_code == 0, (found.output, found.exception)
    return list(yaml.safe_load_all(found.output))


def command(*words: str, **env: str) -> list[str]:
    """The options that the pods' own xla-run gets, and the words after them."""
    job = printed(*words, **env)[1]["spec"]["replicatedJobs"][0]["template"]["spec"]
    found = job["template"]["spec"]["containers"][0]["command"]
    return found[found.index("29500") + 1 :]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["--image", "i", "--cpu", "2"],
            "--image, --cpu: for a job on Kubernetes; give --k8s NAME",
        ),
        (["--print"], "--print: for a job on Kubernetes; give --k8s NAME too"),
        ([*NEW], "--k8s: how many ranks each pod gets is not said; give -n N"),
        ([*NEW, "-n", "auto"], "--k8s: how many ranks each pod gets is not said; give -n N"),
        (
            [*NEW, "-n", "1", "--hosts", "a"],
            "--k8s and --hosts: they are different ways to run one",
        ),
        (
            [*NEW, "-n", "1", "--slurm", "--requeue"],
            "--k8s and --slurm and --requeue: they are dif",
        ),
        (
            [*NEW, "-n", "1", "--max-preemptions", "3", "--min-hosts", "1"],
            "--max-preemptions and --min-hosts: Kubernetes chooses the hosts of a job, and starts "
            "all pods again where one was evicted or preempted, 10 times unless --max-restarts N",
        ),
        ([*NEW, "-n", "1", "--spares", "1"], "--spares: Kubernetes chooses the hosts of a job"),
        ([*NEW, "--once"], "--once runs the command on this host; leave out --once, or --k8s"),
        ([*NEW, "-n", "1", "--stdin", "0"], "--stdin: a rank in a pod cannot read this terminal"),
        ([*NEW, "-n", "1", "--job-id", "a"], "--job-id: a job on Kubernetes has the name of --k8s"),
        (["--k8s", "train", "-n", "1"], "--image '': the image that the pods run is needed, such"),
        (["--k8s", "A", "--image", "i", "-n", "1"], "--k8s 'A': the name of a job has lower-case"),
        ([*NEW, "-n", "1", "--env", "1=2"], "--env '1=2': the form X=Y is needed"),
    ],
)
def test_what_cannot_be_right_is_refused(words: list[str], told: str) -> None:
    error = invoked(*words, "true").exception
    assert isinstance(error, UsageError) and told in str(error)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (NEW, "--k8s: no command; write it after the options: python train.py"),
        (["--k8s", "train", "--print"], "--print: the command and --image are needed, to print a"),
        (["--k8s", "Train"], "--k8s 'Train': the name of a job has lower-case letters"),
    ],
)
def test_no_command_is_told(words: list[str], told: str) -> None:
    error = invoked(*words).exception
    assert isinstance(error, UsageError) and told in str(error)


def test_options_of_the_ranks_are_handed_on_and_those_of_the_pods_are_not() -> None:
    ours = ["--nodes", "2", "--cpu=4", "--memory", "8Gi", "--shm-size", "1Gi", "--detach"]
    ours += ["--namespace", "ml", "--context=here", "--max-restarts", "2", "--env", "X=1"]
    found = command(*ours, "-n", "2", "--timestamps", "--tee", "0", "--", "t.py", "--cpu", "9")
    assert found == [
        *("--rendezvous-timeout=1800s", "-n", "2", "--timestamps", "--tee", "0"),
        *("--", "t.py", "--cpu", "9"),
    ]


def test_a_command_that_is_not_here_may_be_in_the_image() -> None:
    assert command("-n", "1", "no_such.py")[-2:] == ["--", "no_such.py"]


def test_there_is_a_rank_for_each_gpu_or_chip_of_a_pod() -> None:
    assert command("--gpus-per-node", "8", "t.py")[:2] == ["-n", "8"]
    tpus = ["--nodes", "2", "--tpu-topology", "2x4", "--tpu-accelerator", "tpu-v5-lite-podslice"]
    assert command(*tpus, "t.py")[:2] == ["-n", "4"]
    assert command("--gpus-per-node", "8", "-n", "4", "t.py")[1:3] == ["-n", "4"]


def test_an_interpreter_of_the_image_can_be_named() -> None:
    job = printed("-n", "1", "--python", "/opt/venv/bin/python", "t.py")[1]["spec"]
    words = job["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]
    assert words["command"][:3] == ["/opt/venv/bin/python", "-m", "torch_xdist.launcher"]


def test_how_long_pods_wait_for_each_other_can_be_said() -> None:
    assert (
        command("-n", "1", "--rendezvous-timeout", "5m", "t.py")[0] == "--rendezvous-timeout=300s"
    )
    assert command("-n", "1", "--rendezvous-timeout", "off", "t.py")[0].endswith("=off")
    found = command("-n", "1", "t.py", XLA_RUN_RENDEZVOUS_TIMEOUT="90")
    assert found[0] == "--rendezvous-timeout=90s"
    assert wait_s(None, 300.0) == 1800.0 and wait_s(300.0, 300.0) == 300.0


def test_variables_of_this_machine_are_not_handed_on_but_those_that_are_named(
    tmp_path: Path,
) -> None:
    (tmp_path / "env").write_text("A=1\n")
    words = ["--env-file", str(tmp_path / "env"), "--env", "XLA_FLAGS", "--env", "API_KEY=hush"]
    secret, job_set = printed("-n", "1", *words, "t.py", XLA_FLAGS="--x", PYTHONPATH="/here")
    job = job_set["spec"]["replicatedJobs"][0]["template"]["spec"]
    env = job["template"]["spec"]["containers"][0]["env"]
    assert env == [{"name": "A", "value": "1"}, {"name": "XLA_FLAGS", "value": "--x"}]
    assert secret["stringData"]["API_KEY"] == "hush"


def test_a_manifest_is_printed_where_there_is_no_kubectl(tmp_path: Path) -> None:
    _, job_set = printed("-n", "1", "t.py", PATH=str(tmp_path))
    assert job_set["kind"] == "JobSet"


def test_what_belongs_to_the_nodes_of_a_job_is_said_by_the_pods() -> None:
    error = invoked(*NEW, "-n", "1", "--nnodes", "2", "true").exception
    assert isinstance(error, UsageError) and "--k8s and --nnodes: they are different" in str(error)


def test_a_dry_run_shows_no_secret() -> None:
    found = invoked(*NEW, "--dry-run", "-n", "1", "--env", "API_KEY=hush", "t.py")
    secret, _ = yaml.safe_load_all(found.output)
    assert secret["stringData"] == {"XLA_RUN_SECRET": "***", "API_KEY": "***"}


def test_restarts_are_those_of_kubernetes() -> None:
    policy = printed("-n", "1", "--max-restarts", "3", "t.py")[1]["spec"]["failurePolicy"]
    assert policy["maxRestarts"] == 3
    assert printed("-n", "1", "t.py")[1]["spec"]["failurePolicy"]["maxRestarts"] == 10


def test_options_of_kubernetes_are_none_without_it() -> None:
    Asked().check()
    Asked(k8s="train", image="i").check()
