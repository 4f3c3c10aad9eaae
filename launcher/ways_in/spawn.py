"""`spawn` runs a function in every rank, by value, and gets the results back.

The calling process stays as it is: no thread, no device, no torch. A conductor process runs the
job and sends over one socket what the ranks print, what they return, or why the job failed.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from torch_xdist import settings as device_settings
from torch_xdist import world
from torch_xdist.launcher.facts import cluster, devices, job, payload, settings
from torch_xdist.launcher.facts import part as part_of_job
from torch_xdist.launcher.facts.cluster import HostOfMany
from torch_xdist.launcher.facts.errors import (
    LauncherError,
    NestedSpawnError,
    SettingError,
    UsageError,
)
from torch_xdist.launcher.facts.job import Job
from torch_xdist.launcher.facts.records import ranks_text
from torch_xdist.launcher.ways_in.handle import Handle, show
from torch_xdist.system import rank as ranks
from torch_xdist.system.errors import RankError
from torch_xdist.system.rank import Rank

START_METHODS = ("spawn", "fork", "forkserver")
_told_of_fork = False


def spawn(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    nprocs: int | None = None,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> "list[Any] | Handle":
    """Run `fn(rank, *args)` in `nprocs` processes, one per device, and return what they return.

    The function, its closure and its arguments travel by value, so it may be a lambda, or defined
    in `__main__` or a notebook cell. Inside a rank that `xla-run`, torchrun, Slurm or mpirun
    started, no process is started: the function runs here, as that rank. On a host of a TPU slice
    or a JobSet, they are its ranks of a job of all its hosts, each of which runs the script.

    Args:
        nprocs: ranks on this host; None: CPU_NUM_DEVICES, or 1, on the CPU, else one per device.
            A single rank reads this process's stdin, so that `breakpoint()` works in it.
        join: wait for the end; else a `Handle` comes back at once.
        daemon: accepted for torch's sake; ranks never outlive their caller.
        start_method: accepted for torch's sake; ranks are forked from a process that has imported
            torch and has nothing else of the caller.

    Returns:
        The results of this host's ranks in their order (of a foreign launcher's rank: its own
        alone), or a `Handle`.

    Raises:
        Exception: what a rank raised, with its traceback there as the cause.
        RankFailedError: a rank failed otherwise, or its exception cannot be pickled.
        PayloadError: something cannot be pickled; raised before anything starts.
        NestedSpawnError: called inside a rank that `spawn` started.
        RendezvousError: a host did not come in time.
        UsageError, DevicesError: `nprocs`, `start_method` or PJRT_DEVICE cannot be right.

    A LauncherError that nobody catches ends the script with its `exit_code`: 137 after a SIGKILL.
    """
    pass_exit_codes_on()
    if start_method not in START_METHODS:
        raise UsageError(
            f"spawn: start_method={start_method!r} is unknown; it is one of "
            f"{', '.join(START_METHODS)}, and all of them do the same here"
        )
    environ = settings.environment()
    rank = _own_rank(environ)
    if rank is not None:
        return [fn(rank, *args)]
    if start_method == "fork":
        _tell_of_fork()
    blob = payload.dumps(fn, tuple(args))
    handle = Handle(_function_job(nprocs, environ), blob)
    if not join:
        handle.watch()
        return handle
    return handle.join() or []


def launch(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    start_method: str = "spawn",
    debug_single_process: bool = False,
) -> Any:
    """Run `fn(index, *args)` on every device.

    In a rank that a launcher started, the function runs here, with its local rank; else one
    process per device is spawned.

    Args:
        debug_single_process: call the function here, once, as the only rank; for debuggers.
    """
    adopt()
    if world.current().is_rank:
        return fn(world.current().local_rank, *args)
    if debug_single_process:
        return fn(0, *args)
    return spawn(fn, args=args, start_method=start_method)


def adopt() -> Rank | HostOfMany | None:
    """Detect the launcher of this process; if it is a rank of one, make it look like one of ours.

    It gets torchrun's names, so far as they are missing, and sees its own device alone. The device
    calls it before its first use (`world.find_with`); calling it again changes nothing.

    Raises:
        SettingError, DevicesError, UsageError: what the launcher, or PJRT_DEVICE, says is wrong.
    """
    environ = settings.environment()
    found = cluster.detect(environ)
    if not isinstance(found, Rank) or found.control or device_settings.rehearsal():
        # The chips of a rehearsal are not on this host.
        return found
    settings.publish(
        {name: value for name, value in found.torchrun_names().items() if not environ.get(name)}
    )
    settings.publish(
        devices.missing_variables(
            found.local_rank, found.local_world_size, environ, devices.probe()
        )
    )
    world.forget()
    return found


def _own_rank(environ: dict[str, str]) -> int | None:
    """The rank that this process is in somebody's job, or None where it is an ordinary process.

    Raises:
        NestedSpawnError: it is a rank that `spawn` started.
    """
    try:
        mine = ranks.from_environ(environ)
    except RankError as error:
        raise SettingError(str(error)) from None
    if settings.text(environ, "XLA_RUN_TASK") == "function":
        raise NestedSpawnError(
            f"spawn: this is rank {mine.rank} of a spawn already; a rank cannot "
            "spawn ranks: call the function directly, or spawn once with more nprocs"
        )
    if mine.control:
        return mine.rank
    found = adopt()
    return found.rank if isinstance(found, Rank) else None


def _function_job(nprocs: int | None, environ: dict[str, str]) -> Job:
    found = devices.probe()
    choice = devices.choose(environ, found)
    count = devices.local_ranks(nprocs, choice, environ, found)
    part = part_of_job.of_host(cluster.detect(environ), count, choice, environ)
    hosts = 1 if part is None else part.hosts
    # Said here: the head, which gives it to the ranks, would say it late.
    settings.secret(environ)
    made = job_of_function(
        environ,
        nprocs=count,
        device=choice.kind,
        headline=devices.start_line(count * hosts, hosts, choice, environ)
        + ("" if part is not None else cluster.alone_in(environ)),
        cwd=os.getcwd(),
        needs_coordinator=not devices.meets_in_memory(choice.kind, hosts, environ),
        part=part,
    )
    if part is not None:
        made.headline += f"; this is {part.called(part.host_index)}: {ranks_text(made.ranks())}"
    if count == 1 and settings.has_stdin():
        made.stdin_rank = made.ranks().start
    return made


def job_of_function(environ: dict[str, str], **about: Any) -> Job:
    """A job of this kind; `about` are the attributes of it that only its caller knows."""
    log_root, is_named = settings.log_root(environ)
    return Job(
        kind="function",
        argv=sys.argv,
        job_id=job.new_id(),
        state_dir=str(settings.state_dir(environ)),
        log_root=str(log_root),
        log_root_is_named=is_named,
        timeouts=settings.timeouts(environ),
        keep_logs=is_named,
        **about,
    )


def _tell_of_fork() -> None:
    """Once: a fork of torch_xla sees what the caller has changed; a rank of ours does not."""
    global _told_of_fork
    if not _told_of_fork:
        _told_of_fork = True
        show(
            "spawn: start_method='fork' does the same as 'spawn' here: ranks get the function and "
            "its arguments by value, and import modules afresh; pass what you have changed in a "
            "module as an argument\n",
            sys.stderr,
        )


# ---- the exit code of a script that spawned ----------------------------------------------------

Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]


def pass_exit_codes_on() -> None:
    """From now on a LauncherError that nobody catches ends this process with its `exit_code`.

    It is shown as before. An exception that a rank raised comes back as itself: its code is 1.
    """
    if not isinstance(sys.excepthook, _ShowAndExit):
        sys.excepthook = _ShowAndExit(sys.excepthook)


@dataclass(frozen=True)
class _ShowAndExit:
    """Calls the hook it replaces, then ends the process; others may be put before it again."""

    former: Hook

    def __call__(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        self.former(kind, error, trace)
        if isinstance(error, LauncherError):
            # The interpreter takes it from a hook as it takes it from a script: in good order.
            raise SystemExit(int(error.exit_code))


def _find_rank() -> None:
    # What cannot be read matters to who starts ranks, and `spawn` says it.
    with contextlib.suppress(SettingError):
        adopt()


# Who is a rank of srun or mpirun carries other names than torchrun's: the device asks for them.
world.find_with(_find_rank)
