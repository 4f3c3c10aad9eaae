"""`xla-run --slurm --nodes N`: the batch script that runs the same command line inside a new job.

Its shell becomes `xla-run`, so that the signals which Slurm sends to the batch script reach it.
"""

import math
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from torch_xdist.launcher.facts.errors import PreflightError, UsageError
from torch_xdist.launcher.facts.job import Job
from torch_xdist.system.masking import masked, masked_text

_FLAGS = ("--requeue", "--dry-run")
_WITH_VALUE = ("--nodes", "--gpus-per-node", "--sbatch-options")
# Slurm may send the signal later than it was asked to, by its clock's tick; and takes 16 bits.
_TICK_S, _MOST_SIGNAL_S = 30, 65535


@dataclass(frozen=True)
class Batch:
    """What a new Slurm job is asked for; without `nodes`: no new job."""

    nodes: int | None = None
    gpus_per_node: int | None = None
    requeue: bool = False
    sbatch_options: str = ""

    def check(self, *, slurm: bool) -> None:
        """Refuse options that would mean nothing.

        Raises:
            UsageError: there is one.
        """
        if not slurm and self != Batch():
            raise UsageError(
                f"{', '.join((*_WITH_VALUE, '--requeue'))}: they describe a new Slurm job; "
                "give --slurm too, or leave them out"
            )
        if not self.nodes and self != Batch():
            raise UsageError(
                "--gpus-per-node, --sbatch-options and --requeue are for a new Slurm job; "
                "give --nodes N too, or leave them out"
            )


def script(
    spec: Job, asked: Batch, line: Sequence[str], words: Sequence[str], *, is_shown: bool = False
) -> str:
    """The batch script of a job.

    Args:
        line: the words after `xla-run`; those at its end are the command, `words`.
        is_shown: whether it is to be looked at, so without secrets.

    Raises:
        UsageError: the options for sbatch are no command line.
    """
    lead_s = spec.timeouts.graceful_s + _TICK_S
    lead_s = _MOST_SIGNAL_S if math.isinf(lead_s) else min(math.ceil(lead_s), _MOST_SIGNAL_S)
    given = _split(asked.sbatch_options)
    own_share = any(word.startswith(("--cpus-per-task", "-c")) for word in given)
    lines = [
        "--job-name=xla-run",
        f"--nodes={asked.nodes}",
        "--ntasks-per-node=1",
        # A task has one core unless it is said otherwise.
        *([] if own_share else ["--exclusive"]),
        *([f"--gpus-per-node={asked.gpus_per_node}"] if asked.gpus_per_node else []),
        *(["--requeue", "--open-mode=append"] if asked.requeue else ["--no-requeue"]),
        # Else the loss of a node is the end of the job.
        *(["--no-kill"] if spec.spares or spec.least_hosts else []),
        f"--signal=B:TERM@{lead_s}",
        f"--chdir={shlex.quote(spec.cwd)}",
        *([shlex.join(given)] if given else []),
    ]
    own = without(line[: len(line) - len(words)], _WITH_VALUE, _FLAGS)
    inner = [sys.executable, "-m", "torch_xdist.launcher", *own, *words]
    if is_shown:
        inner = [_without_secret(word) for word in inner]
    return "\n".join(
        [
            "#!/bin/sh",
            *(f"#SBATCH {text}" for text in lines),
            "# SIGTERM comes before the time is over; xla-run passes it on, and ranks may save.",
            f"exec {shlex.join(inner)}",
            "",
        ]
    )


def submit(text: str) -> str:
    """Hand a batch script to Slurm; the number of the new job.

    Raises:
        PreflightError: there is no sbatch here, or it refuses the job.
    """
    try:
        done = subprocess.run(
            ["sbatch", "--parsable"], input=text, capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise PreflightError(
            f"--slurm: sbatch cannot be started here ({error.strerror}); run xla-run on a machine "
            "of the cluster"
        ) from error
    if done.returncode != 0:
        said = done.stderr.strip() or f"it ended with code {done.returncode}"
        raise PreflightError(f"--slurm: sbatch refuses the job: {said}")
    return done.stdout.strip().partition(";")[0]


def without(words: Sequence[str], with_value: Sequence[str], flags: Sequence[str]) -> list[str]:
    """Options of a command line without these: what has done its work when the new job runs."""
    kept: list[str] = []
    given = iter(words)
    for word in given:
        name, equals, _ = word.partition("=")
        if name in with_value and not equals:
            next(given, None)
        elif name not in (*with_value, *flags):
            kept.append(word)
    return kept


def _without_secret(word: str) -> str:
    option = "--env=" if word.startswith("--env=") else ""
    name, equals, value = word.removeprefix(option).partition("=")
    return f"{option}{name}={masked(name, value)}" if equals else masked_text(word)


def _split(given: str) -> list[str]:
    try:
        return shlex.split(given)
    except ValueError as error:
        raise UsageError(
            f"--sbatch-options: {given!r} is no command line ({error}); write it as for a shell"
        ) from None
