"""The agent's loop: the ranks of one host, their logs and links, and the way they end.

One thread owns all state; gRPC's reader only drops messages into a deque and wakes it. The loop
waits in one selector, never polls faster than its next deadline.
"""

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

from torch_xdist.launcher import linux
from torch_xdist.launcher.child import Child
from torch_xdist.launcher.control import AgentStream
from torch_xdist.launcher.frames import Decoder, Link, Message
from torch_xdist.launcher.local_rank import LocalRank
from torch_xdist.launcher.memory import OomWatch
from torch_xdist.launcher.pump import Pump

_CHUNK_BYTES = 1 << 16
_STACKS_S = 0.4
# A process that a rank left behind may hold its pipe open.
_LOG_WAIT_S = 0.3
# Messages that may wait for a slow controller before lines are left to the files.
_MOST_PENDING = 1000


class Host:
    """The agent of one host."""

    def __init__(self, job_id: str, nursery: "subprocess.Popen[bytes] | Child", sock: Any) -> None:
        self.job_id = job_id
        self._nursery, self._nursery_socket = nursery, sock
        self._selector = selectors.DefaultSelector()
        self._inbox: deque[tuple[Message, bytes]] = deque()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._ranks: dict[int, LocalRank] = {}
        self._kill_at_s: float | None = None
        self._stacks_at_s: float | None = None
        self._stopping = self._gone = self._orphaned = False
        self._stream: AgentStream | None = None
        self._next_beat_s = 0.0
        self._beats: dict[int, Message] = {}
        self._oom = OomWatch()
        self._pump: Pump | None = None
        self._tee: set[int] = set()
        self._unshown = 0

    # ---- the loop ------------------------------------------------------------------------------

    def run(self) -> None:
        """Connect, obey until the controller says `bye` or is gone, and clean up."""
        linux.adopt_orphans()
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        config = _first_frame(0)
        if config is None:
            self._nursery.kill()
            return
        self._config = config
        self._beat_s = float(self._config["beat_s"])
        self._connect()
        self._watch(self._wake_read, self._on_wake)
        self._watch(0, self._on_stdin)
        self._watch(self._nursery_socket.fileno(), self._on_nursery)
        self._nursery_pidfd = os.pidfd_open(self._nursery.pid)
        self._watch(self._nursery_pidfd, self._on_nursery_end)
        try:
            while not self._gone:
                for key, _ in self._selector.select(self._wait_s()):
                    key.data(key.fd)
                self._keep_time()
        finally:
            self._clean_up()

    def _connect(self) -> None:
        hello = {
            "op": "hello",
            "host_index": self._config["host_index"],
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "now_s": time.monotonic(),
        }
        self._stream = AgentStream(
            self._config["address"],
            self._config["token"],
            hello,
            lambda message, blob: self._post(message, blob),
            lambda why: self._post({"op": "lost", "why": why}, b""),
        )

    def _post(self, message: Message, blob: bytes) -> None:
        self._inbox.append((message, blob))
        with contextlib.suppress(OSError):
            os.write(self._wake_write, b"\0")

    def _watch(self, fd: int, action: Any) -> None:
        self._selector.register(fd, selectors.EVENT_READ, action)

    def _wait_s(self) -> float:
        deadlines = [t for t in (self._kill_at_s, self._stacks_at_s) if t is not None]
        return max(0.0, min([self._next_beat_s, *deadlines]) - time.monotonic())

    def _keep_time(self) -> None:
        now_s = time.monotonic()
        if now_s >= self._next_beat_s:
            self._next_beat_s = now_s + self._beat_s
            states = {
                rank.rank: linux.state(rank.pid)
                for rank in self._ranks.values()
                if rank.pid and not rank.ended
            }
            self._send({"op": "beats", "beats": self._beats, "states": states})
            self._beats = {}
        if self._stacks_at_s is not None and now_s >= self._stacks_at_s:
            self._stacks_at_s = None
            self._send({"op": "stacks", "stacks": self._read_stacks()})
        if self._kill_at_s is not None and now_s >= self._kill_at_s:
            self._kill_at_s = None
            self._signal_all(signal.SIGKILL)

    def _send(self, message: Message, blob: bytes = b"") -> None:
        if self._stream is not None:
            self._stream.send(message, blob)

    # ---- orders --------------------------------------------------------------------------------

    def _on_wake(self, _: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 4096)
        while self._inbox:
            message, blob = self._inbox.popleft()
            self._obey(message, blob)

    def _on_stdin(self, fd: int) -> None:
        """Stdin says nothing after the first frame; its end means that the launcher is gone."""
        if not os.read(fd, _CHUNK_BYTES):
            self._selector.unregister(fd)
            self._abandon()

    def _obey(self, message: Message, blob: bytes) -> None:
        match message["op"]:
            case "coordinate":
                self._to_nursery(message)
            case "payload":
                self._hand_over(blob)
            case "start":
                self._start(message)
            case "release":
                for rank in self._ranks.values():
                    rank.link.send({"op": "release"})
            case "stop":
                self._stop(int(message["signal"]), float(message["grace_s"]))
            case "stacks":
                self._ask_stacks()
            case "bye":
                self._gone = True
            case "lost":
                self._abandon()

    def _abandon(self) -> None:
        """The controller is gone: end everything at once."""
        if not self._orphaned:
            self._orphaned = True
            self._signal_all(signal.SIGKILL)
            self._gone = True

    def _hand_over(self, blob: bytes) -> None:
        """Give the pickled function to the nursery as a file in memory, never opened here."""
        fd = os.memfd_create("xla-run-payload")
        with open(fd, "wb", closefd=False) as file:
            file.write(blob)
        self._to_nursery({"op": "payload"}, fd)
        os.close(fd)

    def _start(self, message: Message) -> None:
        directory = Path(message["log_dir"])
        self._pump = Pump(directory, self._show, self._warn)
        self._tee = set(message["tee"])
        for facts in message["ranks"]:
            self._start_rank(message, facts, directory)

    def _start_rank(self, message: Message, facts: Message, directory: Path) -> None:
        rank = int(facts["rank"])
        ours, theirs = socket.socketpair()
        log, log_write = os.pipe2(os.O_CLOEXEC)
        program = message["task"]["kind"] == "program"
        local = LocalRank(rank, Link(ours), directory / f"rank-{rank}.stacks", program)
        self._ranks[rank] = local
        assert self._pump is not None
        self._pump.add(rank, log)
        self._watch(ours.fileno(), lambda fd: self._on_link(local))
        task = {**message["task"], "index": facts["index"], "threads": facts["threads"]}
        order = {
            "op": "start",
            "rank": rank,
            "env": facts["env"],
            "cores": facts["cores"],
            "cwd": message["cwd"],
            "task": {**task, "stacks": str(local.stacks)},
        }
        self._to_nursery(order, log_write, theirs.fileno())
        os.close(log_write)
        theirs.close()

    def _to_nursery(self, message: Message, *fds: int) -> None:
        data = json.dumps(message).encode()
        with contextlib.suppress(OSError):
            socket.send_fds(self._nursery_socket, [data], list(fds))

    # ---- what the ranks and the nursery say ----------------------------------------------------

    def _show(self, rank: int, lines: list[str]) -> None:
        """On the pump's thread. What the controller cannot take in time is only in the files."""
        if rank not in self._tee or self._stream is None:
            return
        if self._stream.pending() > _MOST_PENDING:
            self._unshown += len(lines)
            return
        unshown, self._unshown = self._unshown, 0
        self._send({"op": "log", "rank": rank, "lines": lines, "unshown": unshown})

    def _warn(self, text: str) -> None:
        """On the pump's thread."""
        self._send({"op": "note", "text": f"warning: {text}"})

    def _note(self, rank: LocalRank, text: str) -> None:
        """Write into a rank's log what it did not print itself."""
        path = self._pump.path(rank.rank) if self._pump is not None else None
        if path is not None:
            with contextlib.suppress(OSError), open(path, "a", opener=_append_only) as file:
                file.write(text)

    def _on_link(self, rank: LocalRank) -> None:
        frames, is_open = rank.link.read_ready()
        for message, blob in frames:
            if message["op"] == "beat":
                self._beats[rank.rank] = {"progress": message["progress"]}
                continue
            if message["op"] == "failed" and message.get("traceback"):
                self._note(rank, message["traceback"])
            self._send({**message, "rank": rank.rank}, blob)
        if not is_open:
            self._forget(rank.link.fileno())

    def _forget(self, fd: int) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(fd)

    def _on_nursery(self, fd: int) -> None:
        data = self._nursery_socket.recv(1 << 20)
        if not data:
            self._forget(fd)
            return
        message = json.loads(data)
        rank = self._ranks.get(message.get("rank", -1))
        if message["op"] == "ended" and rank is not None:
            self._on_end(rank, int(message["code"]))
            return
        if message["op"] == "started" and rank is not None:
            rank.pid = message["pid"]
        self._send(message)

    def _on_end(self, rank: LocalRank, code: int) -> None:
        """A rank has ended: what it still had to say goes out before the news."""
        rank.ended = True
        with contextlib.suppress(OSError):
            rank.link.sock.setblocking(False)
            while rank.link.fileno() in self._selector.get_map():
                before = len(self._selector.get_map())
                self._on_link(rank)
                if before == len(self._selector.get_map()) and not self._readable(rank.link):
                    break
        assert self._pump is not None
        self._pump.wait(rank.rank, _LOG_WAIT_S)
        if rank.program and code == 0:
            self._send({"op": "finished", "rank": rank.rank, "time": time.monotonic()})
        self._send(
            {
                "op": "ended",
                "rank": rank.rank,
                "pid": rank.pid,
                "code": code,
                "time": time.monotonic(),
                "stopped": rank.stopped,
                "oom": code == -signal.SIGKILL and not rank.stopped and self._oom.killed(),
                "tail": self._pump.tail(rank.rank),
            }
        )
        self._check_all_ended()

    @staticmethod
    def _readable(link: Link) -> bool:
        try:
            return bool(link.sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except OSError:
            return False

    def _on_nursery_end(self, fd: int) -> None:
        """Somebody killed the nursery: its ranks die with it (their death signal)."""
        self._forget(fd)
        self._send({"op": "broken", "text": "the nursery, the parent of the ranks, has died"})
        for rank in self._ranks.values():
            if not rank.ended:
                rank.stopped = True
                self._on_end(rank, -signal.SIGKILL)

    # ---- stacks and the end --------------------------------------------------------------------

    def _ask_stacks(self) -> None:
        for rank in self._ranks.values():
            rank.ask_stack()
        self._stacks_at_s = time.monotonic() + _STACKS_S

    def _read_stacks(self) -> dict[int, str]:
        """What each rank wrote since it was asked; its log gets it too."""
        found = {rank.rank: rank.read_stack() for rank in self._ranks.values()}
        for number, text in found.items():
            self._note(self._ranks[number], text)
        return {number: text for number, text in found.items() if text}

    def _stop(self, number: int, grace_s: float) -> None:
        """Ask every rank to end; kill after the grace. A second order may only shorten it."""
        self._stopping = True
        for rank in self._ranks.values():
            # One that saves a checkpoint and then returns must not wait for the others.
            rank.link.send({"op": "release"})
        self._signal_all(number)
        at_s = time.monotonic() + grace_s
        self._kill_at_s = at_s if self._kill_at_s is None else min(self._kill_at_s, at_s)
        self._check_all_ended()

    def _signal_all(self, number: int) -> None:
        for rank in self._ranks.values():
            rank.signal(number)

    def _check_all_ended(self) -> None:
        if any(not rank.ended for rank in self._ranks.values()):
            return
        if self._ranks or self._stopping:
            self._sweep()
            self._send({"op": "all_ended"})

    def _sweep(self) -> None:
        """Nothing of the job stays: marked processes, descendants, whatever session they are in."""
        keep = {os.getpid(), self._nursery.pid}
        linux.sweep(f"XLA_RUN_JOB_ID={self.job_id}", keep, roots=[os.getpid(), self._nursery.pid])

    def _clean_up(self) -> None:
        self._signal_all(signal.SIGKILL)
        self._sweep()
        self._nursery.kill()
        self._nursery.wait()
        self._sweep()
        linux.reap()
        if self._pump is not None:
            self._pump.close(_LOG_WAIT_S)
        if self._stream is not None and not self._orphaned:
            self._stream.close()
        sys.stdout.flush()
        os._exit(0)


def _first_frame(fd: int) -> Message | None:
    """The first message on a pipe or socket; None where it ends before."""
    decoder = Decoder()
    while data := os.read(fd, _CHUNK_BYTES):
        for message, _ in decoder.feed(data):
            return message
    return None


def _append_only(path: str, _: int) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
