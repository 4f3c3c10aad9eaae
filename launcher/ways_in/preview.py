"""What `xla-run --dry-run` prints: hosts, ranks, their variables and the commands of a job."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch_xdist.launcher.backends.over_command import HostsOverCommand
from torch_xdist.launcher.facts import placement
from torch_xdist.launcher.facts.job import Job
from torch_xdist.launcher.facts.placement import Place
from torch_xdist.launcher.head.runner import backend_of
from torch_xdist.launcher.on_host import host_facts
from torch_xdist.launcher.on_ray.backend import OnRay
from torch_xdist.launcher.on_ray.request import needed, request_of
from torch_xdist.launcher.shipping.sender import Shipment
from torch_xdist.system.masking import masked, masked_text


def text(spec: Job, words: Sequence[str], node: int = 0) -> str:
    """The plan of a job, with secrets masked. Other hosts are not asked, so their part stays open.

    Args:
        node: which of its nodes this is, of a job that is started on each of them.

    Raises:
        DevicesError: this host cannot say which part of which TPU slice it is.
    """
    if spec.way == "ray":
        return "\n".join(_on_ray(spec, words))
    if spec.way == "nodes":
        return "\n".join(_on_node(spec, words, node))
    return "\n".join(_on_hosts(spec, words) if spec.hosts else _here(spec, words))


def _here(spec: Job, words: Sequence[str]) -> list[str]:
    lines = [spec.headline, f"host 0: this host, in {spec.cwd}"]
    log_dir = str(Path(spec.log_root) / spec.job_id / "attempt-0")
    meeting = placement.Meeting(control="CONTROL", coordinator="COORDINATOR", secret=b"\0")
    shared = {**spec.env, **placement.shared_environ(spec)}
    place = Place(host_facts.measure(spec.device), log_dir)
    for order in placement.rank_orders(spec, 0, meeting, [place])[0]:
        cores = ",".join(map(str, order["cores"]))
        lines.append(f"rank {order['rank']} (cores {cores}): {masked_text(' '.join(words))}")
        lines += _variables({**shared, **order["env"]})
    return lines


def _orders(spec: Job) -> list[list[dict[str, Any]]]:
    """What the ranks of each host are told, as far as it is known before the hosts are asked."""
    meeting = placement.Meeting(f"{spec.way}:HEAD", "HOST_0:PORT", "HOST_0", 0, b"\0")
    root = spec.log_root if spec.log_root_is_named else "LOGS"
    place = Place(None, str(Path(root, spec.job_id, "attempt-0")))
    return placement.rank_orders(spec, 0, meeting, [place] * len(spec.hosts))


def _on_node(spec: Job, words: Sequence[str], node: int) -> list[str]:
    where, nodes = ":".join(spec.way_command), len(spec.hosts)
    does = f"listens at {where} for the others" if node == 0 else f"comes to node 0 at {where}"
    counts = f"{spec.least_hosts}:{nodes}" if spec.least_hosts else f"{nodes}"
    lines = [
        f"{spec.nprocs} ranks on {counts} nodes; their cores and devices, and where the ranks "
        "meet, are found when all nodes are there",
        f"this is node {node}: it {does}; both sides prove that they know XLA_RUN_SECRET",
        f"its ranks, in {spec.cwd}, have the variables of this command and these:",
        *_variables({**spec.env, **spec.timeouts.to_environ()}),
    ]
    for order in _orders(spec)[node]:
        lines.append(f"rank {order['rank']}: {masked_text(' '.join(words))}")
        lines += _variables(order["env"])
    return lines


def _on_ray(spec: Job, words: Sequence[str]) -> list[str]:
    backend, request = backend_of(spec), request_of(spec)
    assert isinstance(backend, OnRay)
    lines = [
        f"{spec.nprocs} ranks on {len(spec.hosts)} nodes of Ray, which chooses them; their "
        "cores and devices, and where the ranks meet, are found by the agents",
        f"the cluster at {request.address} is asked for {needed(request)} (STRICT_SPREAD), and for "
        "an actor on each",
        f"every agent is a child of its actor and starts with these variables, in {spec.cwd}:",
        *_variables(backend.env),
        *_shipped(spec),
    ]
    for index, orders in enumerate(_orders(spec)):
        lines.append(f"host {index}: {spec.hosts[index].name}")
        for order in orders:
            lines.append(f"rank {order['rank']}: {masked_text(' '.join(words))}")
            lines += _variables(order["env"])
    return lines


def _on_hosts(spec: Job, words: Sequence[str]) -> list[str]:
    backend = backend_of(spec)
    assert isinstance(backend, HostsOverCommand)
    orders = _orders(spec)
    several = "s" * (len(spec.hosts) > 1)
    lines = [
        f"{spec.nprocs} ranks on {len(spec.hosts)} host{several}; their cores and devices, and "
        "where the ranks meet, are found by the agents",
        f"every agent starts with these variables, and gets them on its stdin, in {spec.cwd}:",
        *_variables(backend.env),
        *_shipped(spec),
    ]
    for index, host in enumerate(spec.hosts):
        lines.append(f"host {index}: {host.name}")
        lines.append(f"  $ {shlex.join(backend.command(index))}")
        for order in orders[index]:
            lines.append(f"rank {order['rank']}: {masked_text(' '.join(words))}")
            lines += _variables(order["env"])
    return [*lines, *_spares(spec)]


def _spares(spec: Job) -> list[str]:
    """What stands in for a host, and with how many hosts the job goes on."""
    backend = backend_of(spec)
    assert isinstance(backend, HostsOverCommand)
    backend.take(spec.spares)
    lines = []
    for index, host in enumerate(spec.spares):
        lines += [f"spare {index}: {host.name}", f"  $ {shlex.join(backend.command(index))}"]
    if spec.least_hosts:
        lines.append(f"at least {spec.least_hosts} of {len(spec.hosts)} hosts are needed")
    return lines


def _shipped(spec: Job) -> list[str]:
    if (shipment := Shipment.of(spec)) is None:
        return []
    told = f"every host gets a copy of {spec.ship} first, and its ranks start in that: "
    return [told + shipment.text]


def _variables(env: dict[str, str]) -> list[str]:
    return [f"  {name}={masked(name, value)}" for name, value in sorted(env.items())]
