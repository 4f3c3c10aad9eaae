"""The process all ranks of a host are forked from: torch and jax are imported here once.

It starts no jax backend and no thread, so a fork of it is safe. It speaks with its agent over one
socket that keeps message borders: `start` (with the rank's log pipe and its link), `payload` (the
pickled function as a sealed memory file), `coordinate`; it answers `ready`, `started`, `ended`,
`coordinator`. It is the parent of the ranks and adopts what they leave behind; when its agent goes
away it kills everything and ends.
"""

import contextlib
import gc
import json
import os
import select
import signal
import socket
import sys
import traceback
from typing import Any, TextIO

from torch_xdist.launcher import coordinator, linux
from torch_xdist.launcher.frames import Message

MOST_BYTES = 1 << 20


class Nursery:
    """Forks ranks on request and tells the agent when they end."""

    def __init__(self, agent: socket.socket, job_id: str, reserved: frozenset[int]) -> None:
        self._agent, self._reserved = agent, reserved
        self._marker = f"XLA_RUN_JOB_ID={job_id}"
        self._pids: dict[int, int] = {}  # pid -> rank
        self._payload = -1
        self._poll = select.poll()
        self._pidfds: dict[int, int] = {}  # pidfd -> pid
        self._wake, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        # Orphans that we adopted end without a pidfd: SIGCHLD only wakes the loop to reap them.
        signal.set_wakeup_fd(wake_write)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for fd in (agent.fileno(), self._wake):
            self._poll.register(fd, select.POLLIN)

    def serve(self) -> None:
        """Obey the agent until it is gone, then leave nothing behind."""
        self._tell("ready", pid=os.getpid())
        while True:
            for fd, _ in self._poll.poll():
                if fd == self._agent.fileno():
                    if not self._obey():
                        linux.sweep(self._marker, keep={os.getpid()}, roots=[os.getpid()])
                        return
                elif fd == self._wake:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._wake, 4096)
            self._reap()

    def _obey(self) -> bool:
        """Do what one message says; False where the agent is gone."""
        try:
            data, fds, _, _ = socket.recv_fds(self._agent, MOST_BYTES, 4)
        except OSError:
            return False
        if not data:
            return False
        message = json.loads(data)
        match message["op"]:
            case "start":
                self._start(message, *fds)
            case "payload":
                if self._payload >= 0:
                    os.close(self._payload)
                self._payload = fds[0]
            case "coordinate":
                self._coordinate(message)
        return True

    def _start(self, message: Message, log: int, link: int) -> None:
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                become_rank(message, log, link, self._payload, parent, self._reserved)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(70)
        os.close(log)
        os.close(link)
        self._watch(pid)
        self._pids[pid] = message["rank"]
        self._tell("started", rank=message["rank"], pid=pid)

    def _watch(self, pid: int) -> None:
        pidfd = os.pidfd_open(pid)
        self._pidfds[pidfd] = pid
        self._poll.register(pidfd, select.POLLIN)

    def _coordinate(self, message: Message) -> None:
        """Start JAX's service on a fresh port; another one where somebody was faster."""
        for _ in range(5):
            address = f"{message['host']}:{coordinator.free_port(message['host'])}"
            pid = coordinator.fork(address, message["world_size"])
            if pid:
                self._tell("coordinator", pid=pid, address=address)
                return
        self._tell("broken", text="JAX's coordination service did not start on any of 5 ports")

    def _reap(self) -> None:
        for pid, code in linux.reap():
            for pidfd in [fd for fd, owner in self._pidfds.items() if owner == pid]:
                self._poll.unregister(pidfd)
                os.close(pidfd)
                del self._pidfds[pidfd]
            rank = self._pids.pop(pid, None)
            if rank is not None:
                self._tell("ended", rank=rank, pid=pid, code=code)

    def _tell(self, op: str, **facts: Any) -> None:
        with contextlib.suppress(OSError):
            self._agent.send(json.dumps({"op": op, **facts}).encode())


def become_rank(
    message: Message, log: int, link: int, payload: int, parent: int, reserved: frozenset[int]
) -> None:
    """Turn a fresh fork of the nursery into a rank; does not return."""
    linux.die_with_parent()
    os.setsid()
    if os.getppid() != parent:
        os._exit(70)
    _own_streams(log)
    linux.close_all_but({0, 1, 2, link, payload, *reserved})
    _own_signals()
    os.environ.update(message["env"])
    for name in message.get("unset", ()):
        os.environ.pop(name, None)
    with contextlib.suppress(OSError):
        os.chdir(message["cwd"])
    if message.get("cores"):
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, message["cores"])
    if message["task"]["kind"] == "program":
        _execute(message["task"]["argv"])
    from torch_xdist.launcher import worker

    worker.run(socket.socket(fileno=link), message["task"], payload)


def _own_streams(log: int) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = _text_stream(1)
    sys.stderr = _text_stream(2)
    for name in ("stdin", "stdout", "stderr"):
        setattr(sys, f"__{name}__", getattr(sys, name))


def _text_stream(fd: int) -> TextIO:
    """Line by line, and never an error for a character that cannot be encoded."""
    return open(fd, "w", buffering=1, errors="backslashreplace", closefd=False)


def _own_signals() -> None:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _execute(argv: list[str]) -> None:
    """Replace this process by a program that is no Python script of this interpreter."""
    # Python ignores SIGPIPE; a program expects the default.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        print(f"xla-run: {argv[0]} cannot be started: {error.strerror}", file=sys.stderr)
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


def be(
    agent: socket.socket, job_id: str, warmth: str, reserved: frozenset[int] = frozenset()
) -> None:
    """Import what the ranks need, then serve the agent until it is gone.

    Args:
        reserved: descriptors that stay open in the ranks; see `inherit.give_up_files`.
    """
    linux.adopt_orphans()
    agent.set_inheritable(False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if warmth == "warm":
        # Imports make many objects and little garbage: the collector takes a fifth of their time.
        gc.disable()
        try:
            from torch_xdist.launcher import worker

            worker.warm()
        except BaseException:
            agent.send(json.dumps({"op": "broken", "text": traceback.format_exc()}).encode())
            return
    # A collection in a rank would touch, and so copy, all that it shares with the others.
    gc.freeze()
    gc.enable()
    linux.die_with_parent(0)
    Nursery(agent, job_id, reserved).serve()


def main() -> None:
    """`python -m torch_xdist.launcher.nursery FD JOB_ID warm|cold AGENT_PID`."""
    agent_fd, job_id, warmth, agent_pid = sys.argv[1:5]
    # While it imports, the nursery cannot see that its agent has gone: the kernel tells it.
    linux.die_with_parent()
    if os.getppid() == int(agent_pid):
        be(socket.socket(fileno=int(agent_fd)), job_id, warmth)


if __name__ == "__main__":
    main()
