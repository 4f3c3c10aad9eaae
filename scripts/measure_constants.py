#!/usr/bin/env python
"""Measures the constants of `scaling_model.py` that no other script here does.

    scripts/measure_constants.py [--only judge_us,line_us] [--rounds 5]

One JSON line for each: its name, its value (the least of the rounds, by the processor's time where
it is one of the head's thread, by the clock where it is one of a service), and what was done. The
names end in the unit. `docs/scaling.md` says where each one counts.
"""

import argparse
import io
import json
import os
import pickle
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from torch_xdist.launcher.backends.over_command import HostsOverCommand
from torch_xdist.launcher.backends.ssh import Ssh
from torch_xdist.launcher.facts import placement
from torch_xdist.launcher.facts.host import HostFacts
from torch_xdist.launcher.facts.host_list import Host
from torch_xdist.launcher.facts.job import Job
from torch_xdist.launcher.facts.placement import Meeting, Place
from torch_xdist.launcher.facts.records import Heartbeat
from torch_xdist.launcher.facts.settings import Timeouts
from torch_xdist.launcher.head import standing, verdict
from torch_xdist.launcher.head.inbox import Inbox
from torch_xdist.launcher.head.sight import Clock, Seen, Sight
from torch_xdist.launcher.viewing.screen import Screen
from torch_xdist.system import frames

RANKS, HOSTS = 4096, 512
_CLIENTS, _OPERATIONS = 4, 300


def worked_s(work: Callable[[], Any]) -> float:
    """Of the processor, this process with its threads."""
    before = time.process_time()
    work()
    return time.process_time() - before


def job_of(hosts: int, ranks: int = 8) -> Job:
    named = tuple(Host(f"host{number}", slots=ranks) for number in range(hosts))
    return Job("program", ["python", "train.py"], hosts * ranks, job_id="j", hosts=named)


def judge_us() -> tuple[float, str]:
    """Of one rank in one look at the job: the verdict, the status that is shown, hangs."""
    job = job_of(HOSTS)
    sight = Sight(job, 0, Clock())
    beat = Heartbeat(7, "running", 7, "all_reduce", "train.py:77")
    for rank in sight.seen:
        sight.seen[rank] = Seen(rank, last_beat_s=1.0, beat=beat, changed_s=1.0)
        sight.arrived.add(rank)
    watch = standing.HangWatch(job.timeouts, lambda text: None)

    def look() -> None:
        ranks = sight.ranks()
        standing.status(job, 0, sight)
        verdict.judge(ranks, 2.0, Timeouts())
        watch.look(ranks, 2.0)

    return worked_s(look) / RANKS * 1e6, f"one judgement of {RANKS} ranks"


def order_bytes() -> tuple[float, str]:
    """Of one rank in what its host is told to start."""
    job, facts = job_of(HOSTS), HostFacts(name="h", cores=tuple(range(64)))
    meeting = Meeting("ssh:here", "10.0.0.1:4321", "10.0.0.1", 1234, bytes(32))
    orders = placement.rank_orders(job, 0, meeting, [Place(facts, "/tmp/logs/j/attempt-0")] * HOSTS)
    return len(json.dumps(orders[-1])) / 8, f"the orders of a host of {HOSTS}, 8 ranks each"


def line_us() -> tuple[float, str]:
    """Of one line that a rank prints, from the bytes that come to what is shown."""
    lines = [f"step {number}: loss 2.3456, 123 ms" for number in range(100)]
    message = {"op": "log", "rank": 3, "lines": lines, "unfinished": "", "unshown": 0}
    data, inbox = frames.encode(message), Inbox()
    out = io.StringIO()

    def show() -> None:
        screen = Screen(RANKS, out, out)
        for _ in range(200):
            (frame,) = frames.Decoder().feed(data)
            inbox.put(0, frame.message, b"")
            item = inbox.take()
            assert item is not None
            screen("log", **{name: item[1][name] for name in ("rank", "lines", "unfinished")})
        screen.close(60)

    return worked_s(show) / (200 * len(lines)) * 1e6, "20,000 lines in messages of 100"


def send_us() -> tuple[float, str]:
    """Of an order to one host, as a stop is: encoding, encryption and write."""
    from torch_xdist.launcher.connection import Connection
    from torch_xdist.launcher.sealed import as_head, as_node
    from torch_xdist.launcher.tls import KeyPair

    order, pair, secret = {"op": "stop", "signal": 15, "grace_s": 2.0}, KeyPair(), b"s" * 32
    pairs = []
    for _ in range(200):
        ours, theirs = socket.socketpair()
        node = threading.Thread(target=as_node, args=(theirs, secret, 60.0))
        node.start()
        pairs.append((Connection.over(ours, as_head(ours, secret, "j", 60.0, pair)), theirs))
        node.join()

    def send() -> None:
        for connection, _ in pairs:
            connection.put(frames.encode(order))
            connection.flush()

    found = worked_s(send) / len(pairs) * 1e6
    for connection, theirs in pairs:
        connection.close()
        theirs.close()
    return found, "an order over each of 200 socket pairs"


def start_ms() -> tuple[float, str]:
    """Of one agent that is started over ssh, of which `cat` takes the place, at the head."""
    hosts = [Host(f"host{number}", slots=8) for number in range(32)]
    backend = HostsOverCommand(Ssh(["sh", "-c", "exec cat"]), hosts, "python3", {})
    agents: list[Any] = []

    def start() -> None:
        agents.extend(backend.start(index, "j", "warm", f"M={index}") for index in range(32))

    found = worked_s(start) / 32 * 1e3
    for agent in agents:
        agent.end(0.1)
    return found, "32 agents"


def _service(ranks: int) -> tuple[Any, str]:
    from jaxlib import _jax

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    return _jax.get_distributed_runtime_service(address, ranks, recoverable=True), address


_CLIENT = """
import sys, time
from jaxlib import _jax
address, rank, ranks, step, count, what = sys.argv[1], *map(int, sys.argv[2:6]), sys.argv[6]
clients = [
    _jax.get_distributed_runtime_client(address, r, init_timeout=60, shutdown_on_destruction=False)
    for r in range(rank, ranks, step)
]
import threading
began_s = time.monotonic()
threads = [threading.Thread(target=client.connect) for client in clients]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
if what == "join":
    print(time.monotonic() - began_s, flush=True)
    sys.stdin.readline()
    import os; os._exit(0)
client, value = clients[0], b"x" * 200
for number in range(count):
    client.key_value_set_bytes(f"xdist/program/{number}/{rank}", value, True)
began_s = time.monotonic()
for number in range(count):
    if what == "put":
        client.key_value_set_bytes(f"xdist/program/{number}/{rank}", value, True)
    else:
        client.key_value_try_get_bytes(f"xdist/program/{number}/{rank}")
print(time.monotonic() - began_s, flush=True)
sys.stdin.readline()
import os; os._exit(0)
"""


def _clients(ranks: int, what: str) -> float:
    """The seconds of the slowest of some processes, which are all ranks together."""
    service, address = _service(ranks)
    words = [sys.executable, "-c", _CLIENT, address]
    processes = [
        subprocess.Popen(
            [*words, str(rank), str(ranks), str(_CLIENTS), str(_OPERATIONS), what],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for rank in range(_CLIENTS)
    ]
    try:
        return max(float(process.stdout.readline()) for process in processes)  # type: ignore[union-attr]
    finally:
        for process in processes:
            process.kill()
            process.wait()
        service.shutdown()


def put_us() -> tuple[float, str]:
    """Of a value that is written into the coordination service, clients at work all the time."""
    found = _clients(_CLIENTS, "put") / (_CLIENTS * _OPERATIONS) * 1e6
    return found, f"{_CLIENTS} clients of {_OPERATIONS} values of 200 bytes, on the same cores"


def get_us() -> tuple[float, str]:
    """Of a value that is read there."""
    found = _clients(_CLIENTS, "get") / (_CLIENTS * _OPERATIONS) * 1e6
    return found, f"{_CLIENTS} clients of {_OPERATIONS} values of 200 bytes, on the same cores"


def join_ms() -> tuple[float, str]:
    """Of a rank that joins the coordination service, all at the same time."""
    ranks = 128
    return _clients(ranks, "join") / ranks * 1e3, f"{ranks} clients in {_CLIENTS} processes"


def wire_us() -> tuple[float, str]:
    """Of a barrier of one rank to one other host: what is written, and read on its thread."""
    import numpy as np

    from torch_xdist.collectives.hosts.mirror import Wire

    ours, theirs = socket.socketpair()
    wire, note, slot = Wire(1, ours), np.zeros(100, np.uint8), np.zeros(1024, np.uint8)
    read: queue.SimpleQueue[int] = queue.SimpleQueue()

    def take() -> None:
        size = 0
        while data := theirs.recv(1 << 16):
            size += len(data)
        read.put(size)

    thread = threading.Thread(target=take)
    thread.start()

    def send() -> None:
        for _ in range(1000):
            wire.barrier(note, slot, [(0, 1024)], lambda: None)
        ours.shutdown(socket.SHUT_WR)
        read.get()

    found = worked_s(send) / 1000 * 1e6
    thread.join()
    return found, "1,000 barriers of 1 KB over a socket pair"


def _plans(ranks: int, tensors: int) -> list[Any]:
    import torch
    from torch.distributed.checkpoint.metadata import (
        ChunkStorageMetadata,
        MetadataIndex,
        TensorProperties,
    )
    from torch.distributed.checkpoint.planner import (
        SavePlan,
        TensorWriteData,
        WriteItem,
        WriteItemType,
    )

    def item(name: int, rank: int) -> Any:
        chunk = ChunkStorageMetadata(torch.Size([8 * rank, 0]), torch.Size([8, 1024]))
        size = torch.Size([8 * ranks, 1024])
        data = TensorWriteData(chunk, TensorProperties(torch.float32), size)
        index = MetadataIndex(f"model.layers.{name}.weight", chunk.offsets, rank)
        return WriteItem(index, WriteItemType.SHARD, tensor_data=data)

    names = {f"model.layers.{n}.weight": ("model", f"layers.{n}.weight") for n in range(tensors)}
    return [
        SavePlan([item(n, rank) for n in range(tensors)], planner_data=names)
        for rank in range(ranks)
    ]


def plan_us() -> tuple[float, str]:
    """Of one part of one tensor in the plan of a sharded checkpoint, which one process makes."""
    from torch_xdist.sharded_checkpoint.planners import SPMDSavePlanner

    plans = _plans(64, 100)
    found = worked_s(lambda: SPMDSavePlanner().create_global_plan(plans))
    return found / 6400 * 1e6, "64 ranks with a part of each of 100 tensors"


def plan_bytes() -> tuple[float, str]:
    """Of one part of one tensor in what a rank sends for that."""
    return len(pickle.dumps(_plans(1, 100)[0])) / 100, "a rank with a part of each of 100 tensors"


CONSTANTS: dict[str, Callable[[], tuple[float, str]]] = {
    one.__name__: one
    for one in (
        *(start_ms, order_bytes, send_us, judge_us, line_us, join_ms, put_us, get_us, wire_us),
        *(plan_us, plan_bytes),
    )
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default=",".join(CONSTANTS))
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    for name in asked.only.split(","):
        found = [CONSTANTS[name]() for _ in range(asked.rounds)]
        value = min(value for value, _ in found)
        line = {"name": name, "value": float(f"{value:.3g}"), "of": found[0][1]}
        print(json.dumps(line), flush=True)
    os._exit(0)  # clients of services that have ended would wait for them


if __name__ == "__main__":
    main()
