"""`xla-run --detach`: the job runs without its terminal, and the prompt is back once it is up."""

from collections.abc import Callable

import click

from torch_xdist.launcher.facts.errors import HostError, UsageError
from torch_xdist.launcher.facts.job import Job
from torch_xdist.launcher.viewing.detach import InBackground
from torch_xdist.launcher.viewing.screen import Screen
from torch_xdist.launcher.ways_in.host_options import Asked

_HOW = """xla-run: job {job} runs in the background
  xla-run attach {job}    shows what it shows, from now on (Ctrl-C: look no more)
  xla-run logs -f {job}   what its ranks have written
  xla-run stop {job}      stops it"""


def check(asked: Asked, *, stdin_rank: int | None) -> None:
    """Whether a job with these options can be one in the background.

    Raises:
        UsageError: it cannot.
    """
    if stdin_rank is not None:
        raise UsageError(
            f"--stdin {stdin_rank}: with --detach no rank can read this terminal; leave out one"
        )
    if asked.batch.nodes and not asked.ray:
        raise UsageError(
            "--detach: a job of --slurm --nodes waits in the queue and runs without you already; "
            "leave out --detach"
        )
    if asked.nodes.are_several and asked.nodes.node_rank:
        raise UsageError(
            f"--detach: the job is that of node 0, not of node {asked.nodes.node_rank}; here "
            "leave it out, and start this node under nohup, tmux or a service"
        )


def run(
    spec: Job,
    hear: Callable[[Callable[[int], None]], None],
    work: Callable[[Job, bool, Callable[..., None]], int],
    *,
    timestamps: bool,
) -> int:
    """Start the job, show what it says until it is up, and say where it is to be found.

    Args:
        hear: lets signals be heard by what it is given.
        work: runs the job, which calls what it is given with every event.

    Returns:
        0 where the job is up, else its exit code.

    Raises:
        HostError: its head died before that.
    """
    spec.stdin_rank = None
    started = InBackground(lambda tell: work(spec, timestamps, tell))
    hear(started.ask)
    screen = Screen(
        spec.nprocs, timestamps=timestamps, labels=spec.labels() if spec.hosts else None
    )
    code: int | None = None
    is_up = False
    try:
        for event, facts in started.events():
            is_up |= event == "start"
            if event == "end":
                code = int(facts["exit_code"] or 0)
                screen.say_end(facts["warnings"], facts["text"])
            else:
                screen(event, **facts)
    finally:
        screen.close()
    if is_up:
        click.echo(_HOW.format(job=spec.job_id), err=True)
        click.echo(spec.job_id)
        return 0
    if code is None:
        raise HostError(
            f"job {spec.job_id}: its launcher ended before the job was up, without a word; "
            f"see `xla-run logs {spec.job_id}`"
        )
    return code
