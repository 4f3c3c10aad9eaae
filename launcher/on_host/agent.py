"""The agent, one process per host: starts its ranks, watches them, and leaves nothing behind.

It owns the nursery (which forks the ranks), the log pipes and the links of the ranks. It decides
nothing: what it sees goes to the head over one stream, and what the head says is done. It ends its
ranks by itself in one case only: when the head is gone (its stdin ends, or the stream does, or says
nothing for too long).

One thread owns all state; the threads of the stream and of the pump only drop messages into a deque
and wake it. The loop waits in one selector, never polls faster than its next deadline, and touches
no disk: a disk that hangs must not keep it from ending the ranks.
"""

import contextlib
import os
import resource
import selectors
import signal
import socket
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch_xdist.launcher.digest import Digest
from torch_xdist.launcher.on_host import beside, nursery
from torch_xdist.launcher.on_host.beside import Beside
from torch_xdist.launcher.on_host.head_stream import HeadStream, SocketToHead, WayToHead
from torch_xdist.launcher.on_host.started_rank import OomWatch, StartedRank
from torch_xdist.system import process_tree
from torch_xdist.system.frames import Frame, Link, Message, to_memory_file
from torch_xdist.system.process import Child, Process

_STACKS_S = 0.4
# Heartbeats of several ranks go to the head in one message; news wait this long for the others'.
_BUNDLE_S = 0.2
# A process that a rank left behind may hold its pipe open.
_LOG_WAIT_S = 0.3


class Agent:
    """The agent of one host.

    Args:
        mark: "NAME=value", in the environment of every process that this agent is to end.
        nursery: its process, started by us or forked with us.
        link: to the nursery.
        head: the way to the head.
    """

    def __init__(self, mark: str, nursery: Child, link: Link, head: WayToHead) -> None:
        self._mark, self._nursery, self._to_nursery = mark, nursery, link
        self._head = head
        self._selector = selectors.DefaultSelector()
        self._inbox: deque[tuple[Message, bytes]] = deque()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._ranks: dict[int, StartedRank] = {}
        # Orders wait for the nursery here: while it imports, nobody reads its socket.
        self._held: list[tuple[Message, Sequence[int]]] | None = []
        self._kill_at_s: float | None = None
        self._stacks_at_s: float | None = None
        self._told_at_s: dict[int, float] = {}
        self._next_beat_s = 0.0
        self._digest = Digest()
        self._gone = self._orphaned = self._said_all_ended = False
        # What the ranks are asked to end with; 0: nothing yet.
        self._stop_signal = 0
        self._oom = OomWatch()
        self._pump: Any = None
        self._own_logs: Any = None
        self._beside = Beside(lambda *told: self._stream.send(*told), self._ranks)

    # ---- the loop ------------------------------------------------------------------------------

    def run(self) -> None:
        """Connect, obey until the head says `bye` or is gone, and clean up."""
        process_tree.adopt_orphans()
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        config = self._head.config()
        if config is None:
            self._nursery.kill()
            self._nursery.wait()
            return
        # The nursery is on its way: what is imported from here on costs no time.
        from torch_xdist.launcher.on_host import host_facts

        told = config.message
        self._beat_s = float(told["beat_s"])
        self._stdin = config.descriptors[0] if config.descriptors else -1
        facts = host_facts.measure(
            told["device"],
            alone=told["hosts"] == 1,
            address=told["named"],
            keeps_logs=told["keeps_logs"],
        )
        self._stream = HeadStream(self._head, told, {"facts": facts.to_json()}, self._post)
        self._beside.watch_notices(has_tpu=facts.whole is not None)
        self._watch(self._wake_read, self._on_wake)
        if self._head.fileno() >= 0:
            self._watch(self._head.fileno(), self._on_stdin)
        self._watch(self._to_nursery.fileno(), self._on_nursery)
        self._watch(self._nursery.fileno(), self._on_nursery_end)
        try:
            while not self._gone:
                for key, _ in self._selector.select(self._wait_s()):
                    key.data(key.fd)
                self._keep_time()
        except BaseException:
            why = traceback.format_exc()
            self._stream.send({"op": "broken", "text": f"the agent failed:\n{why}"})
            # It may have had too many files open, and cleaning up needs some.
            self._drop_held()
            self._selector.close()
        finally:
            self._clean_up()

    def _post(self, message: Message, blob: bytes = b"") -> None:
        """From any thread: let the loop take a message."""
        self._inbox.append((message, blob))
        with contextlib.suppress(OSError):
            os.write(self._wake_write, b"\0")

    def _watch(self, fd: int, action: Callable[[int], None]) -> None:
        self._selector.register(fd, selectors.EVENT_READ, action)

    def _forget(self, fd: int) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(fd)

    def _wait_s(self) -> float:
        deadlines = [t for t in (self._kill_at_s, self._stacks_at_s) if t is not None]
        earliest_s = min([self._next_beat_s, *deadlines, *self._told_at_s.values()])
        return max(0.0, earliest_s - time.monotonic())

    def _keep_time(self) -> None:
        now_s = time.monotonic()
        if now_s >= self._next_beat_s:
            self._next_beat_s = now_s + self._beat_s
            states = {
                rank.rank: rank.process.state()
                for rank in self._ranks.values()
                if rank.process is not None and not rank.ended
            }
            self._stream.send(self._digest.take(states))
        if self._stacks_at_s is not None and now_s >= self._stacks_at_s:
            self._stacks_at_s = None
            self._stream.send({"op": "stacks", "stacks": self._read_stacks()})
        if self._kill_at_s is not None and now_s >= self._kill_at_s:
            self._kill_at_s, self._stop_signal = None, signal.SIGKILL
            self._signal_all(signal.SIGKILL)
        for number, at_s in list(self._told_at_s.items()):
            if now_s >= at_s:
                self._tell_end(self._ranks[number])

    # ---- orders --------------------------------------------------------------------------------

    def _on_wake(self, _: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 4096)
        while self._inbox:
            self._obey(*self._inbox.popleft())

    def _on_stdin(self, fd: int) -> None:
        if self._head.is_gone():
            self._forget(fd)
            self._abandon()

    def _obey(self, message: Message, blob: bytes) -> None:
        match message["op"]:
            case "coordinate":
                self._order(message)
            case op if op in beside.OPS:
                self._beside.take(message, blob)
            case "payload":
                fd = to_memory_file(blob, "xla-run-payload")
                self._order(message, fd)
            case "start":
                self._start(message)
            case "release":
                for rank in self._ranks.values():
                    rank.link.send({"op": "release"})
            case "stop":
                self._stop(int(message["signal"]), float(message["grace_s"]))
            case "stacks":
                self._ask_stacks()
            case "drained":
                rank = self._ranks[int(message["rank"])]
                if rank.rank in self._told_at_s:
                    self._tell_end(rank)
            case "bye":
                self._gone = True
            case "lost":
                self._abandon()

    def _abandon(self) -> None:
        """The head is gone: end everything at once."""
        if not self._orphaned:
            self._orphaned = self._gone = True
            self._signal_all(signal.SIGKILL)

    def _order(self, message: Message, *descriptors: int) -> None:
        """Tell the nursery, as soon as it listens; the descriptors are closed then."""
        if self._held is not None:
            self._held.append((message, descriptors))
            return
        self._to_nursery.send(message, descriptors=descriptors)
        for fd in descriptors:
            os.close(fd)

    def _drop_held(self) -> None:
        """No order that waits will be given."""
        if self._held is not None:
            for fd in [fd for _, descriptors in self._held for fd in descriptors]:
                os.close(fd)
            self._held = []

    def _start(self, message: Message) -> None:
        if self._stop_signal:
            return
        from torch_xdist.launcher.on_host.own_logs import OwnLogs
        from torch_xdist.launcher.on_host.pump import Pump

        if message["is_own_log_dir"]:
            self._own_logs = OwnLogs(Path(message["log_dir"]))
        self._pump = Pump(
            Path(message["log_dir"]) if message["log_dir"] else None,
            show=self._stream.show,
            warn=lambda text: self._stream.send({"op": "note", "warning": text}),
            drained=lambda rank: self._post({"op": "drained", "rank": rank}),
            ahead_s=float(message["time_s"]) - time.time(),
        )
        self._beside.log_dir, self._beside.flush_log = message["log_dir"], self._pump.flush
        self._stream.show_lines_of(message["tee"])
        common = {"task": message["task"], "cwd": message["cwd"], "env_of_all": message["env"]}
        self._order({"op": "orders", **common})
        for facts in message["ranks"]:
            is_program = message["task"]["kind"] == "program"
            self._start_rank(facts, is_program, facts["rank"] == message["stdin_rank"])

    def _start_rank(self, facts: Message, is_program: bool, has_stdin: bool) -> None:
        number = int(facts["rank"])
        ours, theirs = socket.socketpair()
        log, log_write = os.pipe2(os.O_CLOEXEC)
        stacks = os.memfd_create("xla-run-stacks", os.MFD_CLOEXEC)
        error_file = facts["env"].get("TORCHELASTIC_ERROR_FILE", "")
        rank = StartedRank(number, Link(ours), stacks, program=is_program, error_file=error_file)
        self._ranks[number] = rank
        has_stdin = has_stdin and self._stdin >= 0
        self._pump.add(number, log, interactive=has_stdin)
        self._watch(ours.fileno(), lambda fd: self._on_link(rank))
        given = [log_write, theirs.detach(), os.dup(stacks)]
        if has_stdin:
            # Whoever writes to it must see when the rank has closed it, so we keep none.
            given.append(self._stdin)
            self._stdin = -1
        self._order({"op": "start", **facts}, *given)

    # ---- what the ranks and the nursery say ----------------------------------------------------

    def _on_link(self, rank: StartedRank) -> None:
        received, is_open = rank.link.read_ready()
        for message, blobs, descriptors in received:
            if message["op"] == "profiled":
                self._beside.profiles.told(rank.rank, message, descriptors)
                continue
            if message["op"] == "beat":
                beat, made_s = message["heartbeat"], float(message["made_s"])
                if self._digest.hear(rank.rank, beat, made_s):
                    self._next_beat_s = min(self._next_beat_s, time.monotonic() + _BUNDLE_S)
                continue
            if message["op"] == "finished":
                self._digest.finish(rank.rank, time.monotonic())
            if message["op"] == "failed":
                rank.traceback = message.get("traceback", "")
            self._stream.send({**message, "rank": rank.rank}, blobs[0] if blobs else b"")
        if not is_open:
            self._forget(rank.link.fileno())

    def _on_nursery(self, fd: int) -> None:
        received, is_open = self._to_nursery.read_ready()
        for frame in received:
            self._hear(frame)
        if not is_open:
            self._forget(fd)

    def _hear(self, frame: Frame) -> None:
        message = frame.message
        rank = self._ranks.get(message.get("rank", -1))
        match message["op"]:
            case "ready":
                held, self._held = self._held or [], None
                for order, descriptors in held:
                    self._order(order, *descriptors)
            case "started" if rank is not None:
                rank.process = Process(message["pid"], *frame.descriptors)
                if self._stop_signal:
                    # It runs before the nursery tells of it, and may have something to save.
                    rank.signal(self._stop_signal)
                self._stream.send(message)
            case "ended" if rank is not None:
                self._on_end(rank, int(message["code"]))
            case _:
                self._stream.send(message)

    def _on_end(self, rank: StartedRank, code: int) -> None:
        """A rank has ended: what it still had to say goes out before the news."""
        rank.ended, rank.code = True, code
        while rank.link.fileno() in self._selector.get_map() and rank.link.is_readable():
            self._on_link(rank)
        self._told_at_s[rank.rank] = time.monotonic() + _LOG_WAIT_S
        if self._pump.is_drained(rank.rank):
            self._tell_end(rank)

    def _tell_end(self, rank: StartedRank) -> None:
        """Its pipe has been read to the end, or somebody else keeps it open."""
        del self._told_at_s[rank.rank]
        rank.told = True
        # Behind what it has printed.
        self._pump.note(rank.rank, rank.take_traceback())
        self._beside.profiles.ended(rank.rank)
        if rank.program and rank.code == 0:
            self._digest.finish(rank.rank, time.monotonic())
            self._stream.send({"op": "finished", "rank": rank.rank})
        elif (error := rank.told_error()) is not None:
            facts = {"kind": "exception", "exit_code": rank.code, **error}
            self._stream.send({"op": "failed", "rank": rank.rank, **facts})
        facts = {**rank.end_facts(self._oom), "tail": self._pump.tail(rank.rank)}
        self._stream.send({"op": "ended", "rank": rank.rank, **facts})
        self._check_all_ended()

    def _on_nursery_end(self, fd: int) -> None:
        """Somebody killed the nursery: its ranks die with it (their death signal)."""
        self._forget(fd)
        # A fork of it may still hold its end of the socket: until nothing more is there.
        while received := self._to_nursery.read_ready()[0]:
            for frame in received:
                self._hear(frame)
        self._forget(self._to_nursery.fileno())
        if not self._stop_signal:
            self._stream.send(
                {"op": "broken", "text": "the nursery, the parent of the ranks, has died"}
            )
        for rank in self._ranks.values():
            if not rank.ended:
                rank.stopped = True
                self._on_end(rank, -signal.SIGKILL)
        self._check_all_ended()

    # ---- stacks and the end --------------------------------------------------------------------

    def _ask_stacks(self) -> None:
        for rank in self._ranks.values():
            rank.ask_stack()
        self._stacks_at_s = time.monotonic() + _STACKS_S

    def _read_stacks(self) -> dict[int, str]:
        """What each rank wrote since it was asked; its log gets it too."""
        found = {rank.rank: rank.read_stack() for rank in self._ranks.values()}
        for number, text in found.items():
            self._pump.note(number, text)
        return {number: text for number, text in found.items() if text}

    def _stop(self, number: int, grace_s: float) -> None:
        """Ask every rank to end; kill after the grace. A second order may only shorten it."""
        self._stop_signal = number
        if self._held is not None:
            # It still imports, so there is no rank to be asked.
            self._nursery.kill()
            self._drop_held()
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
        if self._said_all_ended or any(not rank.told for rank in self._ranks.values()):
            return
        if self._ranks or self._stop_signal:
            self._said_all_ended = True
            self._sweep()
            self._stream.send({"op": "all_ended"})

    def _sweep(self) -> None:
        """Nothing of the job stays: marked processes, descendants, whatever session they are in."""
        roots = [os.getpid(), self._nursery.pid]
        process_tree.sweep(self._mark, keep=roots, roots=roots)

    def _clean_up(self) -> None:
        self._signal_all(signal.SIGKILL)
        self._sweep()
        self._nursery.kill()
        self._nursery.wait()
        self._sweep()
        process_tree.reap()
        if self._pump is not None:
            for rank in self._ranks.values():
                self._pump.note(rank.rank, rank.take_traceback())
            self._pump.close(_LOG_WAIT_S)
        if self._own_logs is not None:
            self._own_logs.close()
        self._beside.close()
        if not self._orphaned:
            self._stream.close()
        sys.stdout.flush()
        os._exit(0)


def be(mark: str, nursery: Child, link: Link, head: WayToHead) -> None:
    """Be the agent of a nursery that was started."""
    # Five descriptors per rank are ours; the ranks keep the limit that the user has set.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    Agent(mark, nursery, link, head).run()


def main() -> None:
    """`python -m torch_xdist.launcher.on_host.agent JOB_ID warm|cold MARK [NURSERY_PID SOCKET]`."""
    job_id, warmth, mark, *forked = sys.argv[1:]
    if forked:
        sock = socket.socket(fileno=int(forked[1]))
        sock.set_inheritable(False)
        process, link = Child(int(forked[0])), Link(sock)
    else:
        process, link = nursery.start(job_id, warmth, mark)
    be(mark, process, link, SocketToHead(socket.socket(fileno=0)))


if __name__ == "__main__":
    main()
