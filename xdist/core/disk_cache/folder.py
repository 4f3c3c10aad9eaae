"""The folder that keeps compiled programs: it is opened once, and only where it can be trusted.

A compiled program is machine code that this process will run, so whoever may write into the folder
may run code as its user.
"""

import os
import stat

# Another number makes programs of other formats strangers to each other.
NAME = "torch-xdist/programs-1"


def opened(path: str, *, is_named: bool) -> int:
    """A descriptor of the folder, which is made where it is missing, for its owner alone.

    Args:
        is_named: the user named this folder, and may have reasons to share it.

    Raises:
        PermissionError: somebody else could put programs there.
        OSError: it cannot be made or opened.
    """
    os.makedirs(path, 0o700, exist_ok=True)
    follow = 0 if is_named else os.O_NOFOLLOW
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | follow)
    reason = distrust(os.fstat(descriptor), path, is_named=is_named)
    if reason:
        os.close(descriptor)
        raise PermissionError(reason)
    return descriptor


def distrust(found: os.stat_result, path: str, *, is_named: bool) -> str:
    """Why programs of a folder should not be run; "" for a folder to be trusted."""
    mode = stat.S_IMODE(found.st_mode)
    if not is_named and found.st_uid != os.geteuid():
        return (
            f"{path} belongs to user {found.st_uid}, and this is user {os.geteuid()}; set"
            " XLA_PERSISTENT_CACHE_PATH to a folder of your own"
        )
    others = stat.S_IWOTH if is_named else stat.S_IWOTH | stat.S_IWGRP
    if mode & others:
        return f"others may write into {path} (its mode is {mode:o}); chmod go-w {path}"
    return ""
