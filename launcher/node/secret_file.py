"""`--secret-file FILE`: what the nodes of a job know, in a file that nobody else can read."""

import os
import stat

import click

from torch_xdist.launcher.facts import settings
from torch_xdist.launcher.facts.errors import UsageError

_MOST_BYTES = 4096


def take(ctx: click.Context, param: click.Parameter, path: str) -> None:
    """Where the option was given, its file is this process's XLA_RUN_SECRET.

    Raises:
        UsageError: there is a secret already, or the file is none that only its owner reads.
    """
    if not path:
        return
    if settings.text(settings.environment(), "XLA_RUN_SECRET"):
        raise UsageError(
            f"--secret-file {path}: XLA_RUN_SECRET is set too; unset it, or leave out the file"
        )
    os.environ["XLA_RUN_SECRET"] = read(path)


def read(path: str) -> str:
    """The one line of such a file.

    Raises:
        UsageError: it cannot be read, is not this user's own, or others may read or write it.
    """
    try:
        # Without waiting: it may be a pipe that nobody writes to.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            if why := _why_not(os.fstat(fd)):
                raise UsageError(f"--secret-file {path}: {why}")
            return os.read(fd, _MOST_BYTES).decode(errors="replace").strip()
        finally:
            os.close(fd)
    except OSError as error:
        raise UsageError(f"--secret-file {path}: {error.strerror}; name a file here") from error


def _why_not(found: os.stat_result) -> str:
    """What is wrong with a file, by its owner and mode; "" for nothing."""
    if not stat.S_ISREG(found.st_mode):
        return "it is no file; one with 32 hexadecimal digits or more is needed"
    # Those of a cloud's secrets are root's, who can read all anyway.
    if found.st_uid not in (os.geteuid(), 0):
        return f"it belongs to user {found.st_uid}; a file of your own is needed (chown)"
    if found.st_mode & 0o077:
        return f"others may use it (mode {found.st_mode & 0o777:o}); make it yours alone: chmod 600"
    return ""
