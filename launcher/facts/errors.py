"""Every error of the launcher, each also a builtin, each with the exit code it ends the job with.

LauncherError                                70  anything of ours that went wrong
  UsageError            ValueError            2  an option or argument that cannot be right
    AmbiguousJobError   ValueError            2  the beginning of a name that several jobs have
  SettingError          ValueError            2  an environment variable whose value cannot be read
  NestedSpawnError      RuntimeError          2  spawn called inside a rank that spawn started
  PayloadError          TypeError            71  something to be sent that cannot be pickled
  DevicesError          ValueError           71  more ranks than accelerators, an unknown topology
  PreflightError        RuntimeError         71  something the job needs is not there
  RendezvousError       TimeoutError         72  ranks that did not arrive in time
  HostError             ConnectionError      73  a host or a launcher that cannot be reached
  AuthError             PermissionError      73  a caller without the job's token
  DuplicateJobError     RuntimeError         74  the job is already running
  HangError             TimeoutError         76  no rank went on, and the limit to wait has passed
  ProtocolError         RuntimeError         70  a message of the control plane that cannot be read
  RankFailedError       RuntimeError          *  a rank failed; the code is that rank's own

Messages say: where: what was found, with values; what is needed; what to do.
"""

from collections.abc import Iterable
from enum import IntEnum
from typing import Self


class ExitCode(IntEnum):
    """The exit codes of a job. A rank's own 1..125 and 128+n for signal n pass through."""

    FAILED = 1
    USAGE = 2
    INTERNAL = 70
    PREFLIGHT = 71
    RENDEZVOUS = 72
    HOST = 73
    DUPLICATE = 74
    PREEMPTED = 75
    HANG = 76
    RESTARTS_USED_UP = 77
    TIME_LIMIT = 124
    INTERRUPTED = 130


# Rows of the table in docs/launching.md, in its order.
EXIT_CODES: tuple[tuple[str, str], ...] = (
    ("0", "every rank said that it finished"),
    ("1 to 125", "the code of the rank that failed first (an exception is 1)"),
    ("2", "usage: an option, argument or environment variable that cannot be right"),
    ("70", "an error inside the launcher"),
    ("71", "preflight: something the job needs is missing, or cannot be pickled"),
    ("72", "rendezvous: some ranks did not arrive in time"),
    ("73", "a host cannot be reached, or was lost; or a job's launcher does not answer `ps`, ..."),
    ("74", "the job is already running"),
    ("75", "preempted: a rank ended with this code, to go on later or elsewhere"),
    ("76", "hang: killed because no rank went on"),
    ("77", "the restart budget is used up"),
    ("124", "the time limit has passed"),
    ("128 + n", "the rank that failed first was killed by signal n (137 SIGKILL, 139 SIGSEGV)"),
    ("130, 143", "the launcher was told to stop by SIGINT (Ctrl-C) or SIGTERM"),
)


class LauncherError(Exception):
    """The root of every error raised by the launcher.

    `hosts` are those of the attempt that it is due to, by number: without them it might do.
    """

    exit_code: int = ExitCode.INTERNAL
    hosts: tuple[int, ...] = ()

    def due_to(self, *hosts: int) -> Self:
        """The same error, due to these hosts."""
        self.hosts = hosts
        return self


class UsageError(LauncherError, ValueError):
    """An argument or option that cannot be right."""

    exit_code = ExitCode.USAGE


class AmbiguousJobError(UsageError):
    """The beginning of a name that several jobs have."""

    @classmethod
    def of(cls, name: str, jobs: Iterable[str]) -> "AmbiguousJobError":
        """That these jobs have it."""
        told = ", ".join(jobs)
        return cls(f"job {name!r}: several jobs start with it: {told}; give one name")


class SettingError(LauncherError, ValueError):
    """An environment variable whose value cannot be read."""

    exit_code = ExitCode.USAGE


class NestedSpawnError(LauncherError, RuntimeError):
    """`spawn` called inside a rank that `spawn` started."""

    exit_code = ExitCode.USAGE


class PayloadError(LauncherError, TypeError):
    """A function, argument or result that cannot be pickled; the message names its path."""

    exit_code = ExitCode.PREFLIGHT


class DevicesError(LauncherError, ValueError):
    """More ranks than accelerators, or a topology that cannot be computed."""

    exit_code = ExitCode.PREFLIGHT


class PreflightError(LauncherError, RuntimeError):
    """Something the job needs is not there."""

    exit_code = ExitCode.PREFLIGHT


class RendezvousError(LauncherError, TimeoutError):
    """Ranks that did not arrive in time; the message names them."""

    exit_code = ExitCode.RENDEZVOUS


class HostError(LauncherError, ConnectionError):
    """A host that cannot be reached, or a launcher that does not answer or cannot listen."""

    exit_code = ExitCode.HOST


class AuthError(LauncherError, PermissionError):
    """A caller without the job's token."""

    exit_code = ExitCode.HOST


class DuplicateJobError(LauncherError, RuntimeError):
    """The job is already running."""

    exit_code = ExitCode.DUPLICATE


class HangError(LauncherError, TimeoutError):
    """No rank went on, and the limit to wait has passed."""

    exit_code = ExitCode.HANG


class ProtocolError(LauncherError, RuntimeError):
    """A message of the control plane that cannot be read."""


def error_of(exit_code: int, text: str) -> LauncherError:
    """The error of ours that ends a job with this code before it has begun."""
    for kind in (PreflightError, RendezvousError, HostError):
        if kind.exit_code == exit_code:
            return kind(text)
    return LauncherError(text)


class RankFailedError(LauncherError, RuntimeError):
    """A rank failed: the message is its failure in words, `exit_code` the job's exit code."""

    def __init__(self, message: str, exit_code: int = ExitCode.FAILED, rank: int | None = None):
        super().__init__(message)
        self.exit_code = int(exit_code)
        self.rank = rank

    def __reduce__(self) -> tuple[type, tuple[str, int, int | None]]:
        return type(self), (str(self), self.exit_code, self.rank)
