"""torch_xla's old launcher for TPU pods: `python -m torch_xla.distributed.xla_dist --tpu=NAME`.

It takes the old options and does what `xla-run --tpu NAME` does: gcloud finds and reaches the
workers, and every chip gets a rank. The old tool started the command once per host and left ranks
to `xmp.spawn` in it; here each rank runs the command, and `xmp.spawn` in it calls its function.
"""

import argparse
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import NoReturn

from torch_xdist.launcher.facts import devices, job, settings
from torch_xdist.launcher.facts.errors import LauncherError, UsageError
from torch_xdist.launcher.facts.job import Job
from torch_xdist.launcher.ways_in import cli, host_options

DEFAULT_CONTAINER_NAME = "pytorchtpudistrunner"
# What the old tool set by itself on every host.
_SET_BY_IT = (
    *("XRT_TPU_CONFIG", "XRT_LOCAL_WORKER", "XRT_MESH_SERVICE_ADDRESS", "XRT_SHARD_WORLD_SIZE"),
    *("XRT_SHARD_ORDINAL", "TPU_NUM_DEVICES", "XLA_EMIT_STEPLOG"),
)
# As the shell of a login, or else where conda usually lies; the words after it are what to start.
_IN_CONDA = (
    '. /etc/profile; for d in "$HOME/miniconda3" "$HOME/anaconda3" /opt/conda /anaconda3; do '
    'type -t conda || . "$d/etc/profile.d/conda.sh"; done >/dev/null 2>&1; '
    '[ "$(type -t conda)" = function ] || eval "$(conda shell.bash hook)"; '
    'conda activate {} && exec "$0" "$@"'
)


def get_args_parser() -> argparse.ArgumentParser:
    """The old options, with their defaults."""
    parser = argparse.ArgumentParser(
        description="Starts a command on all workers of a TPU VM, as `xla-run --tpu NAME` does.",
        epilog="Example: python3 -m torch_xla.distributed.xla_dist --tpu=NAME -- python3 train.py",
    )
    cluster = parser.add_argument_group("Cluster Setup")
    cluster.add_argument("--tpu", type=str, required=True, help="the TPU VM's name")
    cluster.add_argument(
        "--vm",
        action="append",
        type=str,
        help="VMs of a TPU node: no longer there, so not used; the workers run the command",
    )
    docker = parser.add_argument_group("Docker Setup")
    docker.add_argument(
        "--docker-container",
        default="",
        type=str,
        help=f"the container's name [{DEFAULT_CONTAINER_NAME}]",
    )
    docker.add_argument(
        "--docker-image", default="", type=str, help="run the command in a container of this image"
    )
    docker.add_argument(
        "--docker-run-flag",
        action="append",
        type=str,
        help="an option for docker run, such as --shm-size=16GB",
    )
    conda = parser.add_argument_group("Conda Setup")
    conda.add_argument(
        "--conda-env", default="", type=str, help="run the command in this environment of conda"
    )
    parser.add_argument("--env", action="append", type=str, help="X=Y: a variable for all ranks")
    parser.add_argument(
        "--restart-tpuvm-pod-server",
        action="store_true",
        help="accepted; there is no server that outlives a job",
    )
    parser.add_argument(
        "--tpuvm-server-port", default=51011, type=int, help="accepted; that server had it"
    )
    parser.add_argument("positional", nargs="+", type=str, help="the command, after --")
    return parser


def parse_args(args: Sequence[str] | None) -> argparse.Namespace:
    """The values of the options; those of this process where `args` is None."""
    return get_args_parser().parse_args(args)


def resolve_and_execute(flags: argparse.Namespace) -> NoReturn:
    """Run the command on all workers of the TPU, and end this process with the job's exit code.

    Raises:
        UsageError: `--env` has something else than X=Y, or a variable that is set for the ranks.
        HostError: gcloud does not know the TPU, or it is not ready.
    """
    sys.exit(cli.run_on_screen(job_of(flags), timestamps=False))


def main(args: Sequence[str] | None = None) -> NoReturn:
    """`python -m torch_xla.distributed.xla_dist`.

    Raises:
        UsageError: options of docker and of conda together; or as `resolve_and_execute`.
    """
    flags = parse_args(args)
    if (flags.docker_container or flags.docker_image or flags.docker_run_flag) and flags.conda_env:
        raise UsageError("Docker Setup arguments and Conda Setup arguments are mutually exclusive.")
    resolve_and_execute(flags)


def run_as_program(name: str) -> None:
    """`main`, where the module of this name is the program; an error of ours is one line."""
    if name == "__main__":
        try:
            main()
        except LauncherError as error:
            print(f"xla_dist: {error}", file=sys.stderr)
            sys.exit(int(error.exit_code))


def job_of(flags: argparse.Namespace) -> Job:
    """The job that the options describe; gcloud is asked for the workers.

    Its zone and project are those of gcloud's own settings.

    Raises:
        as `resolve_and_execute`.
    """
    env = _variables(flags.env or [])
    environ = {**settings.environment(), **env}
    found = host_options.of_tpus(flags.tpu)
    log_root, is_named = settings.log_root(environ)
    kind, argv, interpreter = _command(flags.positional)
    return Job(
        kind=kind,
        argv=argv,
        nprocs=sum(host.slots for host in found.hosts),
        device=devices.of_hosts(len(found.hosts), environ).kind,
        job_id=job.new_id(),
        state_dir=str(settings.state_dir(environ)),
        log_root=str(log_root),
        log_root_is_named=is_named,
        # Where the login, or the container, begins; the script is looked for there and not here.
        cwd="",
        sys_path=[str(PurePosixPath(argv[0]).parent)] if kind == "script" else [],
        env=env,
        timeouts=settings.timeouts(environ),
        hosts=found.hosts,
        way=found.way,
        way_command=[*found.command],
        python=interpreter,
        inside=_inside(flags),
    )


def _variables(pairs: Sequence[str]) -> dict[str, str]:
    """The variables of --env, checked as the old tool did it."""
    found = {}
    for pair in pairs:
        if re.match(r"\w*=\w*", pair) is None:
            raise UsageError(
                f"Environment variable to distribute ({pair}) should follow the form: X=Y"
            )
        name, _, value = pair.partition("=")
        if name in _SET_BY_IT:
            raise UsageError(
                f"{name} should not be in the training command provided as they will interfere "
                "with the values set for distributed training"
            )
        found[name] = value
    return found


def _command(words: Sequence[str]) -> tuple[str, list[str], str]:
    """The kind of the command, its words as of a `Job`, and the interpreter of the agents."""
    first, *rest = words
    is_python = re.fullmatch(r"python[\d.]*", PurePosixPath(first).name) is not None
    if not is_python:
        return "program", list(words), "python3"
    rest = rest[rest[:1] == ["-u"] :]
    if len(rest) >= 2 and rest[0] == "-m":
        return "module", rest[1:], first
    if rest and not rest[0].startswith("-"):
        return "script", rest, first
    return "program", list(words), first


def _inside(flags: argparse.Namespace) -> list[str]:
    """What starts the agent's interpreter on a worker."""
    if flags.docker_image:
        name = flags.docker_container or DEFAULT_CONTAINER_NAME
        # Its stdin is the way to the agent; with it the container ends, and is gone.
        words = ["docker", "run", f"--name={name}", "--network=host", "--interactive", "--rm"]
        return [*words, *(flags.docker_run_flag or []), flags.docker_image]
    if flags.conda_env:
        return ["bash", "-c", _IN_CONDA.format(shlex.quote(flags.conda_env))]
    return []
