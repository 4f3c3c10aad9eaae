"""torch_xla's old launcher for TPU pods: its options, its checks, and the commands it runs."""

import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gcloud_stand_in import V4_16, Gcloud

from torch_xdist.launcher.facts.errors import ExitCode, HostError, UsageError
from torch_xdist.launcher.facts.job import Job
from torch_xdist.launcher.head.runner import backend_of
from torch_xdist.launcher.torch_xla_names import xla_dist

COMMAND = ["--", "python", "train.py", "--lr", "0.1"]


@pytest.fixture
def gcloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gcloud:
    made = Gcloud(tmp_path, {"pod": V4_16, "old": {**V4_16, "state": "STOPPED"}})
    monkeypatch.setenv("PATH", made.path)
    monkeypatch.delenv("PJRT_DEVICE", raising=False)
    return made


def job_of(*words: str) -> Job:
    return xla_dist.job_of(xla_dist.parse_args(["--tpu=pod", *words]))


def remote(*words: str) -> list[str]:
    """What the shell of worker 0 runs, in words."""
    command = backend_of(job_of(*words)).command(0)
    assert command[:7] == [*("gcloud", "compute", "tpus", "tpu-vm", "ssh", "pod", "--worker=0")]
    first, *rest = shlex.split(command[-1].removeprefix("--command="))
    assert first == "exec"
    return rest


def test_the_options_have_the_old_names_and_defaults() -> None:
    found = vars(xla_dist.parse_args(["--tpu", "pod", "--", "python", "a.py"]))
    assert found == {
        "tpu": "pod",
        "vm": None,
        "docker_container": "",
        "docker_image": "",
        "docker_run_flag": None,
        "conda_env": "",
        "env": None,
        "restart_tpuvm_pod_server": False,
        "tpuvm_server_port": 51011,
        "positional": ["python", "a.py"],
    }


def test_options_that_are_lists_may_be_given_again() -> None:
    words = ["--vm=a", "--vm=b", "--env=X=1", "--env=Y=2", "--docker-run-flag=--rm=true"]
    found = xla_dist.parse_args(["--tpu=pod", *words, *COMMAND])
    assert (found.vm, found.env) == (["a", "b"], ["X=1", "Y=2"])
    assert found.docker_run_flag == ["--rm=true"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--", "python", "a.py"], "the following arguments are required: --tpu"),
        (["--tpu=pod"], "the following arguments are required: positional"),
    ],
)
def test_what_is_missing_is_named(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        xla_dist.parse_args(words)
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("pair", ["X", "X:1", "-"])
def test_a_variable_without_a_value_is_refused(pair: str) -> None:
    told = f"Environment variable to distribute ({pair}) should follow the form: X=Y"
    with pytest.raises(ValueError) as caught:
        job_of(f"--env={pair}", *COMMAND)
    assert str(caught.value) == told


@pytest.mark.parametrize("name", ["XRT_TPU_CONFIG", "XRT_SHARD_ORDINAL", "TPU_NUM_DEVICES"])
def test_a_variable_that_is_set_for_the_ranks_is_refused(name: str) -> None:
    told = f"{name} should not be in the training command provided as they will interfere with"
    with pytest.raises(ValueError, match=told):
        job_of(f"--env={name}=1", *COMMAND)


@pytest.mark.parametrize(
    "docker", ["--docker-image=i", "--docker-container=c", "--docker-run-flag=--rm"]
)
def test_docker_and_conda_exclude_each_other(docker: str) -> None:
    told = "Docker Setup arguments and Conda Setup arguments are mutually exclusive."
    with pytest.raises(ValueError) as caught:
        xla_dist.main(["--tpu=pod", "--conda-env=e", docker, *COMMAND])
    assert str(caught.value) == told and isinstance(caught.value, UsageError)


def test_every_chip_of_every_worker_gets_a_rank(gcloud: Gcloud) -> None:
    job = job_of("--env=X=1", "--env=Y=a=b", *COMMAND)
    assert [(host.name, host.slots) for host in job.hosts] == [("pod-w0", 4), ("pod-w1", 4)]
    assert (job.nprocs, job.device, job.env) == (8, "", {"X": "1", "Y": "a=b"})
    assert (job.kind, job.argv) == ("script", ["train.py", "--lr", "0.1"])
    describe = ["compute", "tpus", "tpu-vm", "describe", "pod", "--format=json"]
    assert gcloud.calls() == [describe]


@pytest.mark.parametrize(
    ("words", "kind", "argv", "interpreter"),
    [
        (["/opt/bin/python3.11", "/a/b.py"], "script", ["/a/b.py"], "/opt/bin/python3.11"),
        (["python3", "-u", "b.py"], "script", ["b.py"], "python3"),
        (["python3", "-m", "pkg", "x"], "module", ["pkg", "x"], "python3"),
        (["python3", "-X", "utf8", "b.py"], "program", None, "python3"),
        (["accelerate-launch", "--tpu", "b.py"], "program", None, "python3"),
    ],
)
def test_the_command_is_not_looked_for_here(
    gcloud: Gcloud, words: list[str], kind: str, argv: list[str] | None, interpreter: str
) -> None:
    job = job_of("--", *words)
    assert (job.kind, job.argv, job.python) == (kind, argv or words, interpreter)
    assert job.cwd == ""


def test_without_surroundings_the_interpreter_is_started_by_itself(gcloud: Gcloud) -> None:
    assert remote(*COMMAND)[:3] == ["python", "-P", "-c"]


def test_in_conda_it_is_that_of_the_environment(gcloud: Gcloud) -> None:
    shell, option, line, *words = remote("--conda-env", "torch xla", *COMMAND)
    assert (shell, option, words[:3]) == ("bash", "-c", ["python", "-P", "-c"])
    assert line.startswith(". /etc/profile; ")
    assert line.endswith('; conda activate \'torch xla\' && exec "$0" "$@"')


def test_in_docker_it_is_that_of_the_image(gcloud: Gcloud) -> None:
    flags = ["--docker-image=gcr.io/i:1", "--docker-run-flag=--shm-size=16GB"]
    words = remote(*flags, *COMMAND)
    run = ["docker", "run", "--name=pytorchtpudistrunner", "--network=host", "--interactive"]
    assert words[:11] == [*run, "--rm", "--shm-size=16GB", "gcr.io/i:1", "python", "-P", "-c"]
    assert "--name=mine" in remote(*flags, "--docker-container=mine", *COMMAND)


def test_a_tpu_that_is_not_ready_is_named(gcloud: Gcloud) -> None:
    with pytest.raises(HostError, match="TPU old is STOPPED, and READY is needed; start it: gclo"):
        xla_dist.main(["--tpu=old", *COMMAND])


PROGRAM = (sys.executable, "-m", "torch_xla.distributed.xla_dist")


@pytest.mark.long
def test_help_names_every_option() -> None:
    done = subprocess.run([*PROGRAM, "--help"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    for name in ("--tpu", "--vm", "--docker-run-flag", "--conda-env", "--env", "--tpu=NAME -- "):
        assert name in done.stdout


@pytest.mark.long
def test_as_a_program_an_error_is_one_line_and_a_code(gcloud: Gcloud) -> None:
    words = [*PROGRAM, "--tpu=none", *COMMAND]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == ExitCode.HOST
    assert done.stderr.startswith("xla_dist: TPU none: gcloud cannot describe it: ERROR: ")


# Stand-ins for what the workers have: they put their name into the environment.
CONDA = 'conda() { export CONDA_IS="$2"; }'
DOCKER = """#!{python} -P
import os, sys
words = sys.argv[1:]
image = words.index("image")
os.environ["DOCKER_FLAGS"] = " ".join(words[1:image])
os.execvp(words[image + 1], words[image + 1:])
"""


@pytest.fixture
def xla_dist_run(start: Callable, gcloud: Gcloud, tmp_path: Path) -> Callable:
    """`xla_dist_run(body, *options)`: the program to its end, with both workers on this machine."""
    profile = tmp_path / "miniconda3" / "etc" / "profile.d" / "conda.sh"
    profile.parent.mkdir(parents=True)
    profile.write_text(CONDA)
    (tmp_path / "docker").write_text(DOCKER.format(python=sys.executable))
    (tmp_path / "docker").chmod(0o755)

    def whole(body: str, *options: str) -> Any:
        script = tmp_path / "work.py"
        script.write_text(body)
        code = f"from torch_xla.distributed import xla_dist\nxla_dist.main({[*options]!r} + "
        code += f"['--tpu=pod', '--', {sys.executable!r}, {str(script)!r}, 'x'])"
        environ = {"PATH": gcloud.path, "PJRT_DEVICE": "CPU", "HOME": str(tmp_path)}
        return start(code, env=environ).end()

    return whole


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), "None None"),
        (("--conda-env=nightly",), "nightly None"),
        (
            ("--docker-image=image", "--docker-run-flag=--privileged"),
            "None --name=pytorchtpudistrunner --network=host --interactive --rm --privileged",
        ),
    ],
)
def test_each_rank_runs_the_command_in_its_surroundings(
    xla_dist_run: Callable, options: tuple[str, ...], expected: str
) -> None:
    body = (
        "import os, sys\n"
        "from torch_xdist.launcher.ways_in.spawn import spawn\n"
        "def work(rank):\n"
        "    print(rank, os.environ['MINE'], sys.argv[1], os.environ.get('CONDA_IS'),"
        " os.environ.get('DOCKER_FLAGS'))\n"
        "spawn(work, nprocs=8)\n"
    )
    ended = xla_dist_run(body, "--env=MINE=1", *options)
    assert ended.code == 0, ended.err
    assert sorted(ended.out.splitlines()) == [
        f"[pod-w{rank // 4}/{rank}] {rank} 1 x {expected}" for rank in range(8)
    ]


def test_its_code_is_that_of_the_rank_that_failed(xla_dist_run: Callable) -> None:
    ended = xla_dist_run("import os, sys; sys.exit(7 if os.environ['RANK'] == '5' else 0)")
    assert ended.code == 7
    assert "rank 5 (host pod-w1, pid " in ended.err
