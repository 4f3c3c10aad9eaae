"""The user's script as one rank of a topology, and what it wrote down."""

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch_xdist.launcher.facts import settings
from torch_xdist.launcher.facts.errors import PreflightError, UsageError
from torch_xdist.launcher.rehearsal.chips import CHIPS
from torch_xdist.launcher.rehearsal.topologies import Slice

# Chips that a host of a slice has.
_PER_HOST = 4


def run(
    words: Sequence[str], where: Slice, steps: int, *, keeps_stdout: bool, save: str = ""
) -> tuple[dict[str, Any], int]:
    """Run a command until its first steps are compiled; what it wrote, and its exit code.

    Args:
        save: a folder that gets the compiled programs; "" for none.
        keeps_stdout: what it prints goes to stderr: stdout is somebody else's.

    Raises:
        UsageError: there is no such command.
        PreflightError: it has ended without a program.
    """
    report = Path(tempfile.gettempdir(), f"xla-run-compile-{secrets.token_hex(16)}.json")
    try:
        code = _end_of(words, _variables(where, steps, report, save), keeps_stdout)
        found = json.loads(report.read_text()) if report.exists() else {"programs": []}
    finally:
        # It is written at the end of the script: nothing stays of a command that is killed.
        report.unlink(missing_ok=True)
    code = 128 - code if code < 0 else code
    if not found["programs"]:
        raise PreflightError(
            f"xla-run compile: {' '.join(words)}: it ended with exit code {code} before it ran a"
            " program on an xla device, so there is nothing to compile; its own words are above"
        )
    return found, code


def _end_of(words: Sequence[str], variables: dict[str, str], keeps_stdout: bool) -> int:
    """The exit code of the script, of which nothing is alive afterwards; -n: by signal n."""
    try:
        child = subprocess.Popen(
            _command(words),
            env={**settings.environment(), **variables},
            stdout=sys.stderr if keeps_stdout else None,
            process_group=0,
        )
    except OSError as error:
        raise UsageError(
            f"xla-run compile: {words[0]!r} cannot be started ({error.strerror}); give a"
            " command such as python train.py"
        ) from error
    try:
        return child.wait()
    finally:
        # Also what the script has started, and on Ctrl-C the script.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _command(words: Sequence[str]) -> list[str]:
    is_script = words[0].endswith(".py") and not os.access(words[0], os.X_OK)
    return [sys.executable, *words] if is_script else [*words]


def _variables(where: Slice, steps: int, report: Path, save: str) -> dict[str, str]:
    """What makes a process rank 0 of the topology, by torchrun's names."""
    asked = {
        "topology": where.described,
        "slices": where.slices,
        "name": where.title,
        "steps": steps,
        "memory": int(CHIPS[where.kind].usable_bytes),
        "report": str(report),
        "save": save,
    }
    return {
        "XDIST_REHEARSE": json.dumps(asked),
        "PJRT_DEVICE": "TPU",
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": str(where.world_size),
        "LOCAL_WORLD_SIZE": str(min(_PER_HOST, where.world_size)),
    }
