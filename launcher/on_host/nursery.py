"""The process all ranks of a host are forked from: torch and jax are imported here once.

It starts no jax backend and no thread, so a fork of it is safe. It hears its agent over one socket:
`orders` (what all ranks run), `payload` (the pickled function as a memory file), `start` (one rank,
with its log pipe, its link and the file for its stacks), `coordinate`; it answers `ready`,
`started` (with a pidfd), `ended`, `coordinator`. It is the parent of the ranks and adopts what they
leave behind; when its agent goes away it kills everything and ends.
"""

import contextlib
import gc
import os
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterable, Mapping
from typing import Any, TextIO

from torch_xdist.launcher.facts.settings import STACK_SIGNAL, environment
from torch_xdist.launcher.on_host.coordinator import CoordinatorStart
from torch_xdist.system import process_tree
from torch_xdist.system.frames import Frame, Link, Message
from torch_xdist.system.process import Child

_STOPS = (signal.SIGINT, signal.SIGTERM)


class Nursery:
    """Forks ranks on request and tells the agent when they end."""

    def __init__(self, agent: Link, mark: str, reserved: frozenset[int]) -> None:
        self._agent, self._mark, self._reserved = agent, mark, reserved
        self._ranks: dict[int, int] = {}  # pid -> rank
        self._orders: Message = {}
        self._payload = -1
        self._coordinator: CoordinatorStart | None = None
        self._poll = select.poll()
        self._wake, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        # Children end, adopted orphans too: SIGCHLD only wakes the loop to reap them.
        signal.set_wakeup_fd(wake_write)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for fd in (agent.fileno(), self._wake):
            self._poll.register(fd, select.POLLIN)

    def serve(self) -> None:
        """Obey the agent until it is gone, then leave nothing behind."""
        self._tell("ready")
        is_open = True
        while is_open:
            for fd in self._ready():
                if fd == self._agent.fileno():
                    frames, is_open = self._agent.read_ready()
                    for frame in frames:
                        self._obey(frame)
                elif fd == self._wake:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._wake, 4096)
            self._look_at_coordinator()
            self._reap()
        process_tree.sweep(self._mark, keep={os.getpid()}, roots=[os.getpid()])

    def _ready(self) -> list[int]:
        starting = self._coordinator
        if starting is None:
            return [fd for fd, _ in self._poll.poll()]
        self._poll.register(starting.fileno(), select.POLLIN)
        return [fd for fd, _ in self._poll.poll(int(starting.left_s() * 1000) + 1)]

    def _obey(self, frame: Frame) -> None:
        message = frame.message
        match message["op"]:
            case "orders":
                self._orders = message
            case "start":
                self._start(message, *frame.descriptors)
            case "payload":
                if self._payload >= 0:
                    os.close(self._payload)
                self._payload = frame.descriptors[0]
            case "coordinate":
                self._coordinator = CoordinatorStart(message["host"], message["world_size"])

    def _start(self, message: Message, log: int, link: int, *others: int) -> None:
        order, given = {**self._orders, **message}, Given(log, link, *others)
        parent = os.getpid()
        # We ignore these, so a rank would lose one that comes before it has handlers of its own.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
        pid = os.fork()
        if pid == 0:
            code = 70
            try:
                become_rank(order, given, self._payload, parent, self._reserved, mask)
            except KeyboardInterrupt:
                code = 130
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for fd in (log, link, *others):
            os.close(fd)
        self._ranks[pid] = message["rank"]
        self._tell_started(message["rank"], pid)

    def _tell_started(self, rank: int, pid: int) -> None:
        """With a pidfd: we may reap the rank before the agent has seen its number."""
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            self._tell("started", rank=rank, pid=pid)
            return
        self._agent.send({"op": "started", "rank": rank, "pid": pid}, descriptors=[pidfd])
        os.close(pidfd)

    def _look_at_coordinator(self) -> None:
        starting = self._coordinator
        if starting is None:
            return
        waiting = select.poll()
        waiting.register(starting.fileno(), select.POLLIN)
        if not waiting.poll(0) and starting.left_s() > 0:
            return
        # One that was asked for in this very round, and is up already, was not waited for yet.
        with contextlib.suppress(KeyError):
            self._poll.unregister(starting.fileno())
        address = starting.address()
        if address:
            self._coordinator = None
            self._tell("coordinator", address=address)
        elif address is None:
            self._coordinator = None
            self._tell("broken", text="JAX's coordination service did not start on any of 5 ports")

    def _reap(self) -> None:
        for pid, code in process_tree.reap():
            rank = self._ranks.pop(pid, None)
            if rank is not None:
                self._tell("ended", rank=rank, code=code)

    def _tell(self, op: str, **facts: Any) -> None:
        self._agent.send({"op": op, **facts})


class Given:
    """The descriptors that a rank is given: its log pipe, its link, its stacks, maybe its stdin."""

    def __init__(self, log: int, link: int, stacks: int, stdin: int = -1) -> None:
        self.log, self.link, self.stacks, self.stdin = log, link, stacks, stdin


def become_rank(
    order: Mapping[str, Any],
    given: Given,
    payload: int,
    parent: int,
    reserved: frozenset[int],
    mask: Iterable[int],
) -> None:
    """Turn a fresh fork of the nursery into a rank; does not return.

    Args:
        mask: the signals that stay blocked; those that stop a rank are, until it would hear them.
    """
    process_tree.die_with_parent()
    os.setsid()
    if os.getppid() != parent:
        os._exit(70)
    _own_streams(given.log, given.stdin)
    process_tree.close_all_but({0, 1, 2, given.link, given.stacks, payload, *reserved})
    _own_signals()
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    os.environ.update(order["env_of_all"])
    os.environ.update(order["env"])
    with contextlib.suppress(OSError):
        os.chdir(order["cwd"])
    if order.get("cores"):
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, order["cores"])
    if order["task"]["kind"] == "program":
        _execute(order["task"]["argv"])
    from torch_xdist.launcher.on_host import worker

    task = {**order["task"], "rank": order["rank"], "threads": order["threads"]}
    worker.run(socket.socket(fileno=given.link), task, payload, given.stacks)


def _own_streams(log: int, stdin: int) -> None:
    os.dup2(stdin if stdin >= 0 else os.open(os.devnull, os.O_RDONLY), 0)
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


def be(agent: Link, warmth: str, mark: str, reserved: frozenset[int] = frozenset()) -> None:
    """Import what the ranks need, then serve the agent until it is gone.

    Args:
        reserved: descriptors that stay open in the ranks; see `inherit.give_up_files`.
    """
    process_tree.adopt_orphans()
    # A rank has a handler for the last one once it can show its stacks, and dies of it never.
    for number in (signal.SIGINT, signal.SIGTERM, STACK_SIGNAL):
        signal.signal(number, signal.SIG_IGN)
    if warmth == "warm":
        # Imports make many objects and little garbage: the collector takes a fifth of their time.
        gc.disable()
        try:
            from torch_xdist.launcher.on_host import worker

            worker.warm()
        except BaseException:
            agent.send({"op": "broken", "text": traceback.format_exc()})
            return
        _warn_of_threads(agent)
    # A collection in a rank would touch, and so copy, all that it shares with the others.
    gc.freeze()
    gc.enable()
    process_tree.die_with_parent(0)
    Nursery(agent, mark, reserved).serve()


def _warn_of_threads(agent: Link) -> None:
    # What it needs is loaded by now.
    from torch_xdist.launcher.on_host import inherit

    if not inherit.has_one_thread():
        text = (
            "warning: what XLA_RUN_PREIMPORT names has started threads; ranks are forked from that "
            "process, and may hang in what those threads held: leave that module out"
        )
        agent.send({"op": "note", "text": text})


def start(job_id: str, warmth: str, mark: str) -> tuple[Child, Link]:
    """Start a nursery, before anything else: its imports take longest."""
    ours, theirs = socket.socketpair()
    name, value = mark.split("=")
    nursery = Child.start(
        [
            *(sys.executable, "-P", "-m", "torch_xdist.launcher.on_host.nursery"),
            *(str(theirs.fileno()), warmth, mark, str(os.getpid())),
        ],
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        env={**environment(), "XLA_RUN_JOB_ID": job_id, name: value},
    )
    theirs.close()
    return nursery, Link(ours)


def main() -> None:
    """`python -m torch_xdist.launcher.on_host.nursery SOCKET warm|cold MARK AGENT_PID`."""
    agent_fd, warmth, mark, agent_pid = sys.argv[1:5]
    sock = socket.socket(fileno=int(agent_fd))
    sock.set_inheritable(False)
    # While it imports, the nursery cannot see that its agent has gone: the kernel tells it.
    process_tree.die_with_parent()
    if os.getppid() == int(agent_pid):
        be(Link(sock), warmth, mark)


if __name__ == "__main__":
    main()
