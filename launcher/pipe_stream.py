"""The control plane inside a pair of pipes, such as the stdin and stdout that ssh gives a command.

Whoever started the other side has vouched for it (ssh has authenticated and encrypts), so nothing
is said about tokens here. The messages are those of `control`, one frame each. A TCP connection
whose two ends have proven one secret (`sealed`) carries the same.

Each side says something about every `beat_s`, and takes the other one for lost after `lost_s`
without a word: a cut link ends no connection by itself. One thread serves all streams of a process
(`stream_loop`); who sends never waits.

A stream may outlive its connection. Where that ends, or is silent for half of `lost_s`, the
stream tells of its trouble; whoever can makes a new connection, `suspend`s the stream, tells the
other side how many messages have come, hears the same of it, and lets the stream `resume`. A
connection without a word for `lost_s` is broken off. The other side is lost `within_s` after its
connection has ended, or after its last word.
"""

import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from torch_xdist.launcher import stream_loop
from torch_xdist.launcher.connection import LAST_WORD, MARK, Connection
from torch_xdist.launcher.replay import Replay
from torch_xdist.launcher.sealed import Sealed
from torch_xdist.launcher.stream_loop import Descriptors
from torch_xdist.launcher.tls import Tls
from torch_xdist.system import frames
from torch_xdist.system.errors import FrameError
from torch_xdist.system.frames import Frame, Message

__all__ = ["LAST_WORD", "MARK", "PipeStream"]

_ENDED = "its stream ended"
# Unacknowledged by the other side, which keeps what it has sent until we say that it came.
_MOST_UNTOLD_BYTES = 1 << 20
# What a message is taken for beside its blob.
_MESSAGE_BYTES = 4096
# So much is written before it is looked what has come.
_TURN_BYTES = 4 << 20
# Beats between a sign of life that went after news and the next one that goes by itself.
_AFTER_NEWS = 1.25

OnMessage = Callable[[Message, bytes], None]
Tell = Callable[[str], None]


class PipeStream:
    """One end.

    Args:
        read_fd, write_fd: the pipes, which then belong to this object.
        is_head: whether the other side is the one that was started.
        sealed: of a connection, whose other side has begun by its proof; None: pipes.
        tls: inside which pipes carry what is said; None: they carry it as it is.
    """

    def __init__(
        self,
        read_fd: int,
        write_fd: int,
        *,
        is_head: bool,
        sealed: Sealed | None = None,
        tls: Tls | None = None,
    ) -> None:
        awaits_mark = is_head and sealed is None
        self.line: Connection | None = Connection(
            read_fd, write_fd, sealed, tls=tls, awaits_mark=awaits_mark
        )
        """The connection, until `start` and between `resume` and its end."""
        self._first_line = self.line
        self._replay = Replay()
        self._turn = threading.Lock()
        self._flushed, self._over = threading.Event(), threading.Event()
        self._is_started = self._is_parting = self._is_closing = self._is_mute = False
        self._came = self._untold_bytes = 0
        self._heard_s, self._until_s, self._beat_s, self._lost_s = 0.0, 0.0, 1.0, math.inf
        self._within_s, self._orderly_s, self._waited_s, self._next_here_s = 0.0, math.inf, 0.0, 0.0
        self._why = self._verdict = self._trouble = ""
        self._is_told_silent = False
        self.is_lost = False
        """Whether the other side, or its last connection, was silent for too long."""
        # In TLS it came before the handshake.
        if not is_head and sealed is None and tls is None:
            self.send_open(MARK)

    @classmethod
    def over(cls, line: Connection, *, came: int = 0) -> "PipeStream":
        """One end of a sealed connection, of which `came` messages were taken already."""
        made = cls(line.read_fd, line.write_fd, is_head=True, sealed=line.sealed)
        made.line = made._first_line = line
        made._came = came
        return made

    @property
    def noise(self) -> str:
        """What the other side printed instead of the mark, or before it."""
        return self._first_line.noise

    @property
    def has_begun(self) -> bool:
        """Whether the mark of the other side has come."""
        return self._first_line.has_begun

    @property
    def pending_bytes(self) -> int:
        """Of the messages that no connection has taken yet."""
        return self._replay.pending_bytes

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come."""
        return self._over.is_set() or bool(self._verdict)

    def first(self) -> Frame | None:
        """Wait for the first message, before `start`; None where the stream ends before it."""
        assert self.line is not None
        found = self.line.first()
        if found is not None and found.message.get("op") != "here":
            self._came += 1
        return found

    def start(
        self,
        on_message: OnMessage,
        on_close: Tell,
        *,
        beat_s: float,
        lost_s: float,
        within_s: float = 0.0,
        orderly_s: float = math.inf,
        on_trouble: Tell = lambda why: None,
    ) -> None:
        """Begin to send and to hear; the functions are called on the thread of all streams.

        Args:
            on_message: as the next but one, it may not wait.
            on_close: called once, with the reason, when nothing more will come, on a thread of its
                own.
            lost_s: how long the other side may be silent, once it has said something.
            within_s: how long there may be no connection; 0: the end of the first is the end.
            orderly_s: the same where the connection has ended as by the end of the other process.
            on_trouble: called with the reason when the connection says nothing, and again when it
                has ended, and another one is waited for.
        """
        assert self.line is not None
        self.keep_to(beat_s, lost_s, within_s)
        self._orderly_s = orderly_s
        self._next_here_s = time.monotonic() + beat_s
        if self.line.has_begun:
            self._heard_s = time.monotonic()
        _unblock(self.line)
        self._on_message, self._on_close, self._on_trouble = on_message, on_close, on_trouble
        self._is_started = True
        stream_loop.LOOP.rouse(self)

    def keep_to(self, beat_s: float, lost_s: float, within_s: float = 0.0) -> None:
        """Other limits than those of `start`, from now on."""
        self._beat_s, self._lost_s = beat_s, lost_s
        # Never to give up a side that is gone would be no limit.
        self._within_s = within_s if within_s < math.inf else 0.0
        self._replay.keep(self._within_s > 0)
        self._rouse()

    def send(self, message: Mapping[str, Any], blob: bytes = b"") -> None:
        """Queue a message."""
        self._replay.add(*frames.encoded_parts(message, *((blob,) if blob else ())))
        self._rouse()

    def part(self) -> None:
        """Nothing more is expected: from now on the end of the connection is that of the stream."""
        self._is_parting = True

    def send_open(self, data: bytes) -> None:
        """Bytes that are no message, before `start`: what is read before anybody knows of any."""
        assert self.line is not None
        self.line.put_open(data)

    def silent_s(self) -> float:
        """For how long the other side has said nothing, once it has; without a connection: ever."""
        return math.inf if self._is_started and self.line is None else self.unheard_s()

    def unheard_s(self) -> float:
        """How long ago the other side has said something, over whatever connection."""
        return time.monotonic() - self._heard_s if self._heard_s else 0.0

    def lives_on_s(self) -> float:
        """For how long the other side, which may not know that this is the end, still goes on.

        It has heard our last word at most `_AFTER_NEWS` beats after we have heard its own.
        """
        most_s = max(self._lost_s, self._within_s) + _AFTER_NEWS * self._beat_s
        return 0.0 if math.isinf(most_s) else max(0.0, most_s - self.unheard_s())

    def left_s(self) -> float:
        """Without a connection: how long another one is still waited for."""
        return max(0.0, self._until_s - time.monotonic())

    @property
    def why(self) -> str:
        """Why there is no connection; "" where there is one."""
        return self._why

    @property
    def needs_line(self) -> bool:
        """Whether another connection would be of use: there is none, or it says nothing."""
        return not self.is_over and (self.line is None or self._is_told_silent)

    def suspend(self) -> int:
        """Read nothing more of the connection; how many messages have come, for the other side."""
        with self._turn:
            if self.line is not None:
                self._wait_for_another("its connection was replaced", self._within_s)
                self._rouse()
            return self._came

    def resume(self, line: Connection, came: int) -> None:
        """Go on over another connection, whose other side has got `came` messages of ours.

        Raises:
            HostError: it lacks some that are not kept any more.
        """
        with self._turn:
            if self.is_over:
                line.close()
                return
            self._replay.rewind(came)
            self._drop_line()
            _unblock(line)
            self.line, self._is_mute, self._is_told_silent, self.is_lost = line, False, False, False
            self._heard_s, self._why = time.monotonic(), ""
            self._next_here_s = 0.0
        self._rouse()

    def give_up(self, why: str) -> None:
        """Whoever could make a connection knows that there will be none."""
        self._verdict = self._verdict or why
        self._rouse()

    def close(self, limit_s: float = 2.0) -> None:
        """Send what is queued, at most for `limit_s`, then end this side's stream."""
        if not self._is_started:
            self.abandon()
            return
        self._is_closing = True
        if self.line is None and (self._first_line.sealed is None or self._is_parting):
            # A head does not come back in so short a time, and an agent is not looked for any more.
            self.give_up(_ENDED)
        self._rouse()
        if not self._flushed.wait(limit_s) and (self.line is None or self.line.sealed):
            self.give_up(_ENDED)

    def abandon(self) -> None:
        """Give up a stream that was never started."""
        if self.line is not None:
            self.line.close()
            self.line = None

    # ---- the thread ----------------------------------------------------------------------------

    def descriptors(self) -> Descriptors:
        """See `stream_loop.Served`, as of the next two."""
        line = self.line
        if line is None:
            return Descriptors()
        return Descriptors(line, line.read_fd, line.write_fd if line.is_stuck else -1)

    def due_s(self) -> float:
        line = self.line
        if line is None:
            return self._until_s
        due_s = math.inf if line.is_stuck or self._is_mute else self._next_here_s
        if line.has_begun:
            due_s = min(due_s, self._heard_s + self._lost_s)
            if not self._is_told_silent:
                due_s = min(due_s, self._heard_s + self._doubtful_s)
        return due_s

    def serve(self, since_s: float, *, has_news: bool) -> bool:
        if self._over.is_set():  # it was roused just before its end
            return False
        # A process that was stopped reads what has come meanwhile before it misses anything.
        with self._turn:
            if (line := self.line) is not None:
                has_news = has_news or bool(line.frames)
                self._tend(line, has_news=has_news)
            why = self._end_of(since_s, has_news=has_news)
            trouble, self._trouble = self._trouble, ""
        if not why:
            if trouble:
                self._on_trouble(trouble)
            return True
        self._over.set()
        self._flushed.set()
        with self._turn:
            if self.line is not None:
                self.line.close()
                self.line = None
        # It may wait for the process at the other end, and others are to be served meanwhile.
        threading.Thread(target=self._on_close, args=(why,), daemon=True).start()
        return False

    def _rouse(self) -> None:
        if self._is_started and not self._over.is_set():
            stream_loop.LOOP.rouse(self)

    def _tend(self, line: Connection, *, has_news: bool) -> None:
        """Read, hear and write; what goes wrong ends the connection, or the stream."""
        try:
            if has_news:
                is_open = True
                try:
                    is_open = line.read()
                finally:
                    self._heard_s, self._is_told_silent = time.monotonic(), False
                    while line.frames:
                        self._hear(line.frames.popleft())
                if not is_open:
                    self._end_line(_ENDED, is_meant=line.ended_for_good, within_s=self._orderly_s)
            if self.line is line:
                self._write(line, has_news=has_news)
        except FrameError as error:
            self._verdict = self._verdict or str(error)
        except ConnectionResetError:
            # A connection whose other process has died with something unread, or that was cut.
            self._end_line(_ENDED)
        except OSError as error:
            self._end_line(str(error))

    def _hear(self, frame: Frame) -> None:
        if frame.message.get("op") == "here":
            came = frame.message.get("came")
            self._replay.acknowledge(came if isinstance(came, int) else 0)
            return
        self._came += 1
        self._untold_bytes += len(frame.blob) + _MESSAGE_BYTES
        self._on_message(frame.message, frame.blob)

    def _write(self, line: Connection, *, has_news: bool) -> None:
        """What is queued, and a sign of life where one is due: soon is now, after news."""
        if self._is_mute:
            if self._is_closing:
                self._flushed.set()
            return
        try:
            written, early_s = 0, self._beat_s / 2 if has_news else 0.0
            while line.flush() and written < _TURN_BYTES:
                is_due = time.monotonic() >= self._next_here_s - early_s
                is_due |= self._untold_bytes > _MOST_UNTOLD_BYTES
                if is_due and not self._replay.is_amid:
                    # The other side's next word, and with it ours, is there a little later.
                    after_s = _AFTER_NEWS * self._beat_s if has_news else self._beat_s
                    self._next_here_s, self._untold_bytes = time.monotonic() + after_s, 0
                    line.put(frames.encode({"op": "here", "came": self._came}))
                if (data := self._replay.take()) is None:
                    break
                line.put(data)
                written += len(data)
                if not self._untold_bytes:
                    # A message is a sign of life, too, and there is nothing to acknowledge.
                    self._next_here_s = time.monotonic() + self._beat_s
            if line.flush() and self._is_closing and not self._replay.pending_bytes:
                self._is_mute = True
                line.end_writing()
                self._flushed.set()
            elif written >= _TURN_BYTES:
                self._rouse()
        except (BrokenPipeError, ConnectionResetError):
            # The end of what can be read is still to come, and says why.
            self._is_mute = True

    def _end_line(self, why: str, *, is_meant: bool = False, within_s: float = math.inf) -> None:
        """The connection is not there any more; one without a word was never one."""
        is_meant = is_meant or self._is_parting or self._is_closing
        if is_meant or not self._within_s or not self._first_line.has_begun:
            self._verdict = self._verdict or why
        else:
            self._wait_for_another(why, min(self._within_s, within_s))
            self._trouble = why

    def _wait_for_another(self, why: str, within_s: float) -> None:
        self._drop_line()
        self._why, self._waited_s = why, within_s
        # Both sides count from the last word: neither waits much longer than the other one.
        now_s = time.monotonic()
        heard_s = self._heard_s or now_s
        self._until_s = max(now_s, min(now_s + within_s, heard_s + self._within_s))

    def _drop_line(self) -> None:
        if self.line is not None:
            self.line.break_off()
            self.line = None

    def _end_of(self, now_s: float, *, has_news: bool) -> str:
        """Why nothing more will come; "" where something may."""
        if self._verdict:
            return self._verdict
        if self.line is None:
            if now_s < self._until_s:
                return ""
            waited_s = round(self._waited_s, 1)
            return f"{self._why}, and there was no new connection for {waited_s:g} s"
        silent_s = now_s - self._heard_s
        # The limit begins with the first word: until then the rendezvous keeps the time.
        if has_news or not self.line.has_begun:
            return ""
        if silent_s >= self._lost_s:
            return self._end_silence(silent_s)
        if silent_s >= self._doubtful_s and not self._is_told_silent:
            self._is_told_silent = True
            self._trouble = f"no word from it for {silent_s:.0f} s"
        return ""

    @property
    def _doubtful_s(self) -> float:
        """So long a silence is trouble: one word may be late, two are missing."""
        return max(self._lost_s / 2, 2 * self._beat_s)

    def _end_silence(self, silent_s: float) -> str:
        """No word for too long: the connection is given up, or with it the other side."""
        self.is_lost = True
        why = f"no word from it for {self._lost_s:g} s"
        left_s = self._within_s - silent_s
        if left_s <= 0 or self._is_closing:
            return why
        self._end_line(why, within_s=left_s)
        return ""


def _unblock(line: Connection) -> None:
    os.set_blocking(line.read_fd, False)
    os.set_blocking(line.write_fd, False)
