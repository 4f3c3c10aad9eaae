"""What a node says of itself when it comes to node 0, and why that may not take it. Pure.

Every node of `xla-run --nnodes` has a command line of its own; they must describe one job.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from torch_xdist import __version__
from torch_xdist.launcher.facts.errors import ExitCode
from torch_xdist.launcher.facts.job import Job
from torch_xdist.system.masking import masked_text

NODE, CHECK = "node", "check"


def name_of(node: int) -> str:
    """What a node is called before anything is known of its machine."""
    return f"node{node}"


def introduction(job: Job, node: int, machine: str, session: str) -> dict[str, Any]:
    """What node `node` tells: as JSON. By `session` this process of it is known again."""
    return {
        "op": NODE,
        "node": node,
        "session": session,
        "nodes": len(job.hosts),
        "ranks": job.hosts[node].slots,
        "version": __version__,
        "machine": machine,
        "kind": job.kind,
        "command": _command(job),
    }


def refusal(
    told: Mapping[str, Any], job: Job, *, is_check: bool = False
) -> tuple[ExitCode, str] | None:
    """The exit code and the words with which node 0 refuses a node; None where it fits.

    Args:
        job: as node 0 has it.
        is_check: whether node 0 runs no job, and shows the releases of all nodes in its table.
    """
    if told.get("op") not in (NODE, CHECK) or not isinstance(told.get("node"), int):
        return ExitCode.INTERNAL, "it does not introduce itself as a node"
    if (told["op"] == CHECK) != is_check:
        there, here = ("a check", "a job") if told["op"] == CHECK else ("a job", "a check")
        return ExitCode.USAGE, f"it is {there}, and node 0 is {here}; start the same on all nodes"
    if told.get("version") != __version__ and not is_check:
        return ExitCode.PREFLIGHT, (
            f"it has torch-xdist {told.get('version')}, and node 0 has {__version__}; install the "
            "same on all nodes"
        )
    nodes, node = len(job.hosts), int(told["node"])
    if told.get("nodes") != nodes:
        return ExitCode.USAGE, (
            f"it was started with --nnodes {told.get('nodes')}, and node 0 with --nnodes {nodes}; "
            "give the same number on all nodes"
        )
    if not 0 < node < nodes:
        return ExitCode.USAGE, f"--node-rank {node}: a number from 1 to {nodes - 1} is needed"
    ranks = job.hosts[node].slots
    if told.get("ranks") != ranks:
        return ExitCode.USAGE, (
            f"it has -n {told.get('ranks')}, and node 0 has -n {ranks}; give the same number of "
            "ranks on all nodes"
        )
    return _other_command(told, job)


def _other_command(told: Mapping[str, Any], job: Job) -> tuple[ExitCode, str] | None:
    ours = {"kind": job.kind, "command": _command(job)}
    if all(told.get(name) == value for name, value in ours.items()):
        return None
    here, there = _shown(job.kind, _command(job)), _shown(told.get("kind"), told.get("command"))
    return ExitCode.USAGE, (
        f"it runs {there}, and node 0 runs {here}; start the same command on all nodes (it may lie "
        "in different folders; what is to differ goes into a variable)"
    )


def _command(job: Job) -> list[str]:
    """The command without the folder it lies in."""
    return [*map(os.path.basename, job.argv[:1]), *job.argv[1:]]


def _shown(kind: object, command: object) -> str:
    words = [str(word) for word in command] if isinstance(command, Sequence) else []
    return f"the {kind} `{masked_text(' '.join(words))[:200]}`" if command != [] else "no command"
