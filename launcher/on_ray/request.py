"""What Ray is asked for, and the words for what it answers. Pure."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch_xdist.launcher.backends import introduction
from torch_xdist.launcher.facts.errors import UsageError
from torch_xdist.launcher.facts.host_list import Host
from torch_xdist.launcher.facts.job import Job

_MOST_WORDS = 200


@dataclass(frozen=True, slots=True)
class Request:
    """A placement group of one bundle for each of `hosts` nodes, all different ones.

    `address` is as for `ray.init`; `resources` are those of each bundle, by Ray's names.
    """

    address: str
    hosts: int
    resources: Mapping[str, float]
    name: str

    def to_json(self) -> dict[str, Any]:
        """What `Request(**data)` reads."""
        return asdict(self)


def hosts_of(nodes: int, ranks: int) -> list[Host]:
    """So many hosts of so many ranks; Ray will choose them, so they have numbers."""
    return [Host(introduction.name_of(index), slots=ranks) for index in range(nodes)]


def way_command(address: str, resources: Mapping[str, float]) -> tuple[str, str]:
    """The `way_command` of a job on Ray; no address: that of RAY_ADDRESS, or one found here.

    Raises:
        UsageError: the address is none.
    """
    if address and not re.fullmatch(r"auto|ray://[^\s/]+|[^\s/]+:\d+", address):
        raise UsageError(
            f"--ray-address {address!r}: HOST:PORT is needed, such as 10.0.0.1:6379, or "
            "ray://HOST:10001 for a Ray client"
        )
    return address or "auto", json.dumps(dict(resources))


def request_of(job: Job) -> Request:
    """What a job on Ray asks for: its `way_command` is an address and the resources as JSON."""
    address, resources = job.way_command
    return Request(address, len(job.hosts), json.loads(resources), f"xla-run {job.job_id}")


def resources_of(text: str, ranks: int, gpus: int | None) -> dict[str, float]:
    """The resources of each host: a CPU for each rank, GPUs, and over them what `text` says.

    Args:
        text: of `--ray-resources`, JSON as `ray start --resources` takes it; "" for nothing.

    Raises:
        UsageError: it is no JSON object of numbers.
    """
    found: dict[str, float] = {"CPU": ranks, **({"GPU": gpus} if gpus else {})}
    if not text:
        return found
    try:
        given = json.loads(text)
    except ValueError:
        given = None
    if not isinstance(given, dict) or not all(_is_amount(value) for value in given.values()):
        raise UsageError(
            f"--ray-resources {text!r}: a JSON object of numbers from 0 up is needed, of each "
            'node: \'{"CPU": 8, "TPU": 4}\''
        )
    return {name: amount for name, amount in {**found, **given}.items() if amount}


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


def amounts(resources: Mapping[str, float]) -> str:
    """ "CPU 2, GPU 1": what people count, without Ray's own entries for its nodes and memories."""
    kept = {
        name: value
        for name, value in resources.items()
        if not name.startswith("node:") and name not in ("memory", "object_store_memory")
    }
    return ", ".join(f"{name} {value:g}" for name, value in sorted(kept.items())) or "nothing"


def needed(request: Request) -> str:
    """ "2 nodes with CPU 2 each"."""
    if request.hosts == 1:
        return f"1 node with {amounts(request.resources)}"
    return f"{request.hosts} different nodes with {amounts(request.resources)} each"


def shortage(
    request: Request, nodes: Sequence[Mapping[str, Any]], free: Mapping[str, float]
) -> str:
    """What is needed and what there is.

    Args:
        nodes: as `ray.nodes()` lists them.
        free: as `ray.available_resources()` adds it up.
    """
    alive = [node for node in nodes if node.get("Alive")]
    told = "; ".join(
        f"{node.get('NodeManagerAddress')} with {amounts(node.get('Resources', {}))}"
        for node in alive[:8]
    )
    more = f"; and {len(alive) - 8} more" if len(alive) > 8 else ""
    return (
        f"{needed(request)} are needed, and the cluster has {len(alive)} ({told}{more}), of which "
        f"{amounts(free)} is free"
    )


def words_of(error: BaseException) -> str:
    """What Ray says of the end of an actor, without its advice: the last line of its text."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[-1] if lines else type(error).__name__
    text = text.partition(" Some common causes include")[0]
    return text if len(text) <= _MOST_WORDS else text[:_MOST_WORDS] + "..."
