"""A program in surroundings of its own: other file systems, another host name, other interfaces.

Made in namespaces, so that nothing of it is seen outside, and without root rights where the kernel
lets users make namespaces of their own.
"""

import os
import subprocess
from collections.abc import Mapping

import pytest


def surrounded(kinds: str, setup: str, environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """The words to put before a command, so that it runs after `setup`, a line of shell.

    Skips the test where this machine does not allow it.

    Args:
        kinds: options of unshare: "--mount", "--uts", "--net".
        environ: variables that `setup` reads.
    """
    own_user = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    shell = f'{setup} && exec "$@"'
    before = ("unshare", *own_user, *kinds.split(), "sh", "-c", shell, "sh")
    probe = subprocess.run(
        [*before, "true"], env={**os.environ, **(environ or {})}, capture_output=True, text=True
    )
    if probe.returncode != 0:
        pytest.skip(f"namespaces ({kinds}) cannot be made here: {probe.stderr.strip()}")
    return before
