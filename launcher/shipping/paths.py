"""Where the ranks of a job start in a copy of its folder, and what they find there. Pure."""

import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from torch_xdist.launcher.facts.errors import UsageError
from torch_xdist.launcher.facts.job import Job
from torch_xdist.launcher.shipping.manifest import FILE, Manifest, shown


def check(job: Job, manifest: Manifest) -> None:
    """Whether the ranks of a job will find what they start with in the copy.

    Raises:
        UsageError: the command was typed outside of the folder, or its script is not in it.
    """
    cwd = _inside(job, job.cwd)
    if cwd is None:
        raise UsageError(
            f"--ship {job.ship}: the command was typed in {job.cwd}, which is not in it; ranks "
            "start at the same place in the copy: go there, or ship a folder above both"
        )
    if cwd != "." and not any(entry.path == cwd for entry in manifest.entries):
        raise UsageError(
            f"--ship {job.ship}: {shown(cwd)}, where the command was typed, is left out of it "
            "(ignored by git?)"
        )
    if job.kind == "script":
        script = _inside(job, job.argv[0])
        if script is None:
            raise UsageError(
                f"--ship {job.ship}: the script {job.argv[0]} is not in it; ship a folder above it"
            )
        if not any(entry.path == script for entry in manifest.entries if entry.kind == FILE):
            raise UsageError(
                f"--ship {job.ship}: the script {shown(script)} is left out of it (ignored by "
                "git?), or is a link; name the file itself"
            )


def moved(
    job: Job, order: Mapping[str, Any], to: str, environ: Mapping[str, str]
) -> dict[str, Any]:
    """The order for the ranks of a host, as `placement.common_order` makes it, with every path
    below the job's folder led to its copy there.

    Args:
        to: the copy.
        environ: whose PYTHONPATH counts, where the job names none.
    """
    task = order["task"]
    first, *rest = task["argv"]
    # Of a program, as of a script, the file that is started; its arguments are its own.
    argv = [first if job.kind == "module" else _there(job, first, to), *rest]
    python_path = job.env.get("PYTHONPATH", environ.get("PYTHONPATH", ""))
    led = [_there(job, part, to) for part in python_path.split(os.pathsep) if part]
    changed = [path for path in led if PurePosixPath(path).is_relative_to(to)]
    own = [_there(job, path, to) for path in task["sys_path"]]
    env = {**order["env"], **({"PYTHONPATH": os.pathsep.join(led)} if changed else {})}
    new = {**task, "argv": argv, "sys_path": [*own, *changed]}
    return {**order, "task": new, "env": env, "cwd": _there(job, job.cwd, to)}


def _there(job: Job, path: str, to: str) -> str:
    """Where a path lies in the copy; itself where it is no path in the folder."""
    inside = _inside(job, path) if os.sep in path or path == "." else None
    return path if inside is None else str(PurePosixPath(to, inside))


def _inside(job: Job, path: str) -> str | None:
    """A path from the folder on; None where it leads elsewhere."""
    whole = Path(job.cwd, path)
    # The folder has its real name. The last part may be a link in it, which stays one.
    for one in (Path(os.path.normpath(whole)), whole.parent.resolve() / whole.name):
        if one.is_relative_to(job.ship):
            return str(one.relative_to(job.ship))
    return None
