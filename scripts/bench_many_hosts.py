#!/usr/bin/env python
"""What the head of a job of many hosts costs, and how soon it acts: real messages, no real ranks.

    scripts/bench_many_hosts.py [--nodes 1024] [--ranks 8] [--settle 5] [--seconds 20]
                                [--ends fail,flood,vanish]

Node 0 is a real `xla-run --nnodes` with real processes (`sleep`), the others are connections of
`simulated_nodes.py`, which prove the secret, seal, say hello, start, beat and end as nodes do. One
job for each way to end it: a rank raises (`fail`); the same while another node prints without end
(`flood`); a node's connection is cut (`vanish`). One JSON line for each job:

    rendezvous_s  from the start of `xla-run` until the last node was told to start its ranks
    met_s         the part of it after the last node had connected
    met_core_s    seconds of a core that the head's process had needed by then
    core          share of one core that the head's process needs in steady state
    memory_mb     its resident memory, at most
    verdict_s     from the fault until the last node was told to stop
    end_s         from the fault until `xla-run` had ended
"""

import argparse
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil

_NODES = Path(__file__).with_name("simulated_nodes.py")
_COMMAND = ("sleep", "100000")
_SIMULATORS = 2
_LIMIT_S = 60.0
_FLOOD_S, _FLOODED_S = 8.0, 3.0
_FAULTS = {"fail": "fail", "flood": "fail", "vanish": "vanish"}


class Simulators:
    """The processes that are all nodes but the first; collects what they tell."""

    def __init__(self, nodes: int, ranks: int, port: int, env: dict[str, str]) -> None:
        self.told: list[dict[str, Any]] = []
        self._heard = threading.Condition()
        bounds = [1 + (nodes - 1) * part // _SIMULATORS for part in range(_SIMULATORS + 1)]
        self._parts = [range(*bounds[part : part + 2]) for part in range(_SIMULATORS)]
        self.processes = []
        for part in self._parts:
            words = [str(_NODES), "127.0.0.1", str(port), str(part.start), str(part[-1])]
            words += [str(nodes), str(ranks), *_COMMAND]
            process = subprocess.Popen(
                [sys.executable, *words],
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            self.processes.append(process)
            threading.Thread(target=self._listen, args=(process.stdout,), daemon=True).start()

    def _listen(self, lines: Any) -> None:
        for line in lines:
            with self._heard:
                self.told.append(json.loads(line))
                self._heard.notify_all()

    def of(self, event: str) -> list[dict[str, Any]]:
        return [one for one in self.told if one["event"] == event]

    def wait(self, event: str, count: int, limit_s: float = _LIMIT_S) -> float:
        """When the last of so many events was."""
        with self._heard:
            self._heard.wait_for(lambda: len(self.of(event)) >= count, limit_s)
            found = self.of(event)
        if len(found) < count:
            raise SystemExit(f"{event}: {len(found)} of {count} in {limit_s:g} s")
        return float(max(one["at_s"] for one in found))

    def order(self, **facts: Any) -> None:
        for process, part in zip(self.processes, self._parts, strict=True):
            if facts["node"] in part:
                assert process.stdin is not None
                process.stdin.write(json.dumps(facts) + "\n")
                process.stdin.flush()

    def close(self) -> None:
        for process in self.processes:
            process.terminate()
            process.wait()


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def steady(head: psutil.Process, seconds: float) -> tuple[float, float]:
    """(the share of a core, the most MB) of the head alone over some seconds."""
    before, since_s, most = head.cpu_times(), time.monotonic(), 0
    while time.monotonic() < since_s + seconds:
        most = max(most, head.memory_info().rss)
        time.sleep(0.2)
    after, took_s = head.cpu_times(), time.monotonic() - since_s
    used_s = after.user + after.system - before.user - before.system
    return used_s / took_s, most / 1e6


def measured(
    way: str, nodes: int, ranks: int, settle_s: float, seconds: float, folder: Path
) -> dict[str, Any]:
    """One job, from its start to its end."""
    port = free_port()
    env = {**os.environ, "XLA_RUN_SECRET": secrets.token_hex(16), "TMPDIR": str(folder)}
    words = [sys.executable, "-m", "torch_xdist.launcher", "--nnodes", str(nodes)]
    words += ["--node-rank", "0", "--master-addr", "127.0.0.1", "--master-port", str(port)]
    # A node that vanishes is to be judged at once, and not waited for.
    words += ["--reconnect-within", "0"] if way == "vanish" else []
    words += ["-n", str(ranks), *_COMMAND]
    began_s = time.monotonic()
    with open(folder / f"{way}.out", "wb") as out:
        head = subprocess.Popen(words, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    simulators = Simulators(nodes, ranks, port, env)
    try:
        started_s = simulators.wait("started", nodes - 1)
        met_core_s = sum(psutil.Process(head.pid).cpu_times()[:2])
        connected_s = simulators.wait("connected", _SIMULATORS)
        # What all hosts tell of their start is heard first.
        time.sleep(settle_s)
        core, memory_mb = steady(psutil.Process(head.pid), seconds)
        if way == "flood":
            simulators.order(do="flood", node=1, seconds=_FLOOD_S)
            time.sleep(_FLOODED_S)
        fault = _FAULTS[way]
        simulators.order(do=fault, node=nodes // 2)
        fault_s = simulators.wait(fault, 1)
        code = head.wait(_LIMIT_S)
        end_s = time.monotonic()
        stopped_s = simulators.wait("stopped", nodes - 1 - (way == "vanish"), 1.0)
    finally:
        head.kill()
        simulators.close()
    return {
        "end": way,
        "nodes": nodes,
        "ranks": nodes * ranks,
        "rendezvous_s": round(started_s - began_s, 2),
        "met_s": round(started_s - connected_s, 2),
        "met_core_s": round(met_core_s, 2),
        "core": round(core, 3),
        "memory_mb": round(memory_mb),
        "verdict_s": round(stopped_s - fault_s, 2),
        "end_s": round(end_s - fault_s, 2),
        "code": code,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=1024)
    parser.add_argument("--ranks", type=int, default=8, help="of every node")
    parser.add_argument("--seconds", type=float, default=20.0, help="of steady state")
    parser.add_argument("--settle", type=float, default=5.0, help="seconds before these begin")
    parser.add_argument("--ends", default=",".join(_FAULTS))
    asked = parser.parse_args()
    for way in asked.ends.split(","):
        with tempfile.TemporaryDirectory() as folder:
            found = measured(
                way, asked.nodes, asked.ranks, asked.settle, asked.seconds, Path(folder)
            )
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
