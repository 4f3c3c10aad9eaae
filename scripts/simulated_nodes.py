#!/usr/bin/env python
"""Nodes of `xla-run --nnodes` without any rank: real connections, proofs, seals and messages.

    XLA_RUN_SECRET=... scripts/simulated_nodes.py ADDRESS PORT FIRST LAST NODES RANKS COMMAND...

One process is the nodes FIRST to LAST of NODES, each with RANKS ranks of nothing that say that they
run COMMAND. `scripts/bench_many_hosts.py` starts several. Each line of stdin is JSON and orders one
thing; each line of stdout is JSON, with the time on the monotonic clock of this machine.

    {"do": "fail", "node": 7}           its first rank raises
    {"do": "vanish", "node": 7}         its connection is cut, and nobody told
    {"do": "flood", "node": 7, "seconds": 5}  its first rank prints as fast as the head takes it
"""

import json
import os
import selectors
import socket
import sys
import time
from typing import Any

from torch_xdist.launcher.backends.introduction import introduction
from torch_xdist.launcher.digest import Digest
from torch_xdist.launcher.facts.host import VERSION, HostFacts
from torch_xdist.launcher.facts.host_list import Host
from torch_xdist.launcher.facts.job import Job
from torch_xdist.launcher.facts.settings import nodes_secret
from torch_xdist.launcher.sealed import Sealed, as_node
from torch_xdist.system import frames
from torch_xdist.system.frames import Decoder

_HANDSHAKE_S = 30.0
_READ_BYTES = 1 << 18
_LINES = [f"line {number} of a rank that prints without end" for number in range(200)]
# What the socket has not taken yet, beyond which a flood waits, as a real node does.
_MOST_PENDING_BYTES = 8 << 20


def tell(event: str, **facts: Any) -> None:
    print(json.dumps({"at_s": time.monotonic(), "event": event, **facts}), flush=True)


class SimulatedNode:
    """One node: its agent and its ranks are numbers."""

    def __init__(self, job: Job, node: int, sock: socket.socket, sealed: Sealed) -> None:
        self._job, self.node, self.sock, self._sealed = job, node, sock, sealed
        self.ranks = [*range(node * job.hosts[node].slots, (node + 1) * job.hosts[node].slots)]
        self._decoder, self._outbox, self._digest = Decoder(), bytearray(), Digest()
        self._attempt, self._step, self._is_running = -1, 0, False
        self._came = self._told = 0
        self.beat_s, self.next_beat_s, self.flood_until_s = 2.0, float("inf"), 0.0
        # At once, as a node does: the head does not wait long for it.
        told = introduction(job, node, "simulated", f"session of {node}")
        sock.sendall(sealed.sealer.sealed(frames.encode(told)))
        sock.setblocking(False)

    def _send(self, message: dict[str, Any]) -> None:
        self._outbox += self._sealed.sealer.sealed(frames.encode(message))

    def say(self, message: dict[str, Any]) -> None:
        """As its agent would."""
        self._send({**message, "of_attempt": self._attempt})

    def wants_to_write(self) -> bool:
        return bool(self._outbox)

    def write(self) -> None:
        try:
            sent = self.sock.send(self._outbox[: 1 << 20])
            del self._outbox[:sent]
        except BlockingIOError:
            pass

    def read(self) -> bool:
        """Whether the connection lives."""
        try:
            data = self.sock.recv(_READ_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            return False
        for frame in self._decoder.feed(self._sealed.opener.opened(data)):
            if frame.message["op"] != "here":
                self._came += 1
                self._obey(frame.message)
        return bool(data)

    def _obey(self, message: dict[str, Any]) -> None:
        match message["op"]:
            case "attempt":
                self._attempt = int(message["number"])
            case "config":
                self._hello(float(message["beat_s"]))
            case "reach":
                self.say({"op": "reached", "why": ""})
            case "start":
                self._start()
            case "stop":
                self._stop(-int(message["signal"]))
            case "bye":
                self.say({"op": "agent_ended"})
            case "refused":
                tell("refused", node=self.node, text=message["text"])

    def _hello(self, beat_s: float) -> None:
        self.beat_s = beat_s
        # As agents are: not all at the same moment.
        self.next_beat_s = time.monotonic() + beat_s * (self.node % 97) / 97
        facts = HostFacts(
            name=f"machine{self.node}", address="127.0.0.1", port=1, cores=tuple(range(8))
        )
        self.say({"op": "hello", "version": VERSION, "facts": facts.to_json()})

    def _start(self) -> None:
        self._is_running = True
        for rank in self.ranks:
            self.say({"op": "started", "rank": rank, "pid": 1000 + rank})
        tell("started", node=self.node)

    def _stop(self, code: int) -> None:
        if self._is_running:
            self._is_running = False
            tell("stopped", node=self.node)
            for rank in self.ranks:
                facts = {"code": code, "stopped": True, "oom": False, "tail": []}
                self.say({"op": "ended", "rank": rank, **facts})
        self.say({"op": "all_ended"})

    def beat(self, now_s: float) -> None:
        """Its ranks go on by a step; called when `next_beat_s` has come."""
        self.next_beat_s = now_s + self.beat_s
        self._step += 1
        if self._told != self._came:
            self._told = self._came
            self._send({"op": "here", "came": self._came})
        one = {
            "step": self._step,
            "state": "running",
            "seq": self._step,
            "collective": "all_reduce",
            "where": "train.py:77",
            "recent": [[self._step, "all_reduce of 4 values"]],
        }
        running = self.ranks if self._is_running else []
        for rank in running:
            self._digest.hear(rank, one, now_s)
        self.say(self._digest.take(dict.fromkeys(running, "S")))

    def flood(self) -> None:
        """As many lines as the connection takes, until the time is over."""
        if len(self._outbox) < _MOST_PENDING_BYTES:
            lines = {"rank": self.ranks[0], "lines": _LINES, "unfinished": "", "unshown": 0}
            self.say({"op": "log", **lines})

    def fail(self) -> None:
        """Its first rank raises."""
        facts = {"kind": "exception", "exit_code": 1, "type": "ValueError", "message": "too few"}
        text = "Traceback (most recent call last):\nValueError: too few"
        self.say({"op": "failed", "rank": self.ranks[0], **facts, "traceback": text})
        ended = {"code": 1, "stopped": False, "oom": False, "tail": []}
        self.say({"op": "ended", "rank": self.ranks[0], **ended})


class Loop:
    """All nodes of this process."""

    def __init__(self, nodes: list[SimulatedNode]) -> None:
        self._nodes = {node.node: node for node in nodes}
        self._selector = selectors.DefaultSelector()
        for node in nodes:
            self._selector.register(node.sock, selectors.EVENT_READ, node)
        os.set_blocking(0, False)
        self._selector.register(0, selectors.EVENT_READ)
        self._orders = b""

    def run(self) -> None:
        """Until the head has closed every connection."""
        while self._nodes:
            now_s = time.monotonic()
            flooding = any(node.flood_until_s > now_s for node in self._nodes.values())
            for key, _ in self._selector.select(0.0 if flooding else 0.02):
                if key.fd == 0:
                    self._take_orders()
                elif not key.data.read():
                    self._drop(key.data)
            self._keep_time(time.monotonic())

    def _keep_time(self, now_s: float) -> None:
        for node in self._nodes.values():
            if now_s >= node.next_beat_s:
                node.beat(now_s)
            if node.flood_until_s > now_s:
                node.flood()
            if node.wants_to_write():
                node.write()

    def _drop(self, node: SimulatedNode) -> None:
        self._selector.unregister(node.sock)
        node.sock.close()
        del self._nodes[node.node]

    def _take_orders(self) -> None:
        data = os.read(0, 65536)
        if not data:
            self._selector.unregister(0)
        *lines, self._orders = (self._orders + data).split(b"\n")
        for order in map(json.loads, lines):
            if (node := self._nodes.get(order["node"])) is None:
                continue
            tell(order["do"], node=node.node)
            match order["do"]:
                case "fail":
                    node.fail()
                case "vanish":
                    self._drop(node)
                case "flood":
                    node.flood_until_s = time.monotonic() + float(order["seconds"])


def connected(job: Job, node: int, where: tuple[str, int], secret: bytes) -> SimulatedNode:
    """A node whose head has proven the secret; it is waited for as a real node does."""
    while True:
        try:
            sock = socket.create_connection(where, _HANDSHAKE_S)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return SimulatedNode(job, node, sock, as_node(sock, secret, _HANDSHAKE_S))
        except ConnectionRefusedError:
            time.sleep(0.05)


def main() -> None:
    address, port, first, last, nodes, ranks, *command = sys.argv[1:]
    hosts = tuple(Host(f"node{index}", slots=int(ranks)) for index in range(int(nodes)))
    job = Job(kind="program", argv=command, nprocs=len(hosts) * int(ranks), hosts=hosts)
    secret = nodes_secret(os.environ)
    where = (address, int(port))
    made = [connected(job, node, where, secret) for node in range(int(first), int(last) + 1)]
    tell("connected", nodes=len(made))
    Loop(made).run()
    tell("over")


if __name__ == "__main__":
    main()
