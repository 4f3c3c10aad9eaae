"""Memory that the members of one group share, and the barrier in it.

Layout: one header page per member, then two slots per member. A header holds the member's count of
barriers (a futex word), for the last two barriers a note about the collective it is in, and room
for the reason of a failure. Every word has one writer, except the mark that the group has failed,
which is only ever set.

The rule that makes this correct: a member writes only its own header and slots, then comes to the
barrier; after barrier number b it may read the slots of parity b of all members, until it comes to
the next. So one barrier per exchange is enough: whoever writes parity b again has seen all others
at barrier b + 1, hence done with reading. `futex` says why data is seen before the count. With four
slots per member it may read those of barrier b until it comes to b + 2.

A member that leaves a collective with an error it does not share with the others has counted
itself into a barrier, or skipped the next. Taking that back could pair its next call with this one,
so the group has failed for good: every member that waits in it, or calls it again, gets the reason.
"""

import functools
import json
import mmap
import struct
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Protocol

import numpy as np

from torch_xdist.collectives.errors import CollectiveError, MismatchError, RankLostError
from torch_xdist.collectives.groups import ranks_text
from torch_xdist.collectives.launches import are_crossed
from torch_xdist.collectives.shared_memory import futex
from torch_xdist.collectives.wait_report import WaitReport
from torch_xdist.progress import PROGRESS

_PAGE = 4096
_COUNT, _FAILED, _LEFT = 0, 64, 128  # 64 bytes apart, so that they do not share a line
_NOTES, NOTE_BYTES = 256, 1024
_REASON, _REASON_BYTES = _NOTES + 2 * NOTE_BYTES, _PAGE - _NOTES - 2 * NOTE_BYTES
# Of a note: fingerprint; thread; how many known threads, and bytes of text, follow.
_NOTE_HEAD = struct.Struct("=QQHH")
_SIZE = struct.Struct("=I")
_MASK, _HALF = 2**32 - 1, 2**31
_LOOK_S = 0.25  # between two looks at whether the others live
KINDS = {kind.__name__: kind for kind in (CollectiveError, MismatchError, RankLostError)}
Span = tuple[int, int]  # first, and the one after the last
SHOWN = 3  # tensors that a sentence shows one by one


@dataclass(slots=True)
class Caller:
    """Who calls a collective, for messages, and what of it must be equal beside what they show.

    Attributes:
        where: the user's file:line.
        what: the user's tensors and dims; "": those exchanged.
        exact: all that must be equal on every member and is too long to show.
        thread, threads: the name of the thread that launched the program, and of those there are;
            "": not to be compared.
    """

    where: str = ""
    what: str = ""
    exact: bytes = b""
    thread: str = ""
    threads: tuple[str, ...] = ()
    thread_text: str = ""


class Watch(Protocol):
    """What a member knows of the others while it waits."""

    def pid(self, rank: int) -> int:
        """The process of a rank, for messages; 0 where unknown."""

    def has_ended(self, rank: int) -> bool:
        """Whether the process of a rank is known to have ended."""

    def begin(self, ranks: tuple[int, ...], call: str) -> Any:
        """This rank has waited for a while in `call`: (rank) -> what that rank called outside this
        group and waits there for this one, or failed; "" where it may still come here."""


class _Nobody:
    def pid(self, rank: int) -> int:
        return 0

    def has_ended(self, rank: int) -> bool:
        return False

    def begin(self, ranks: tuple[int, ...], call: str) -> Callable[[int], str]:
        return lambda rank: ""


class Segment:
    """One member's view of the memory of its group.

    Args:
        memory: shared by all members, `size_bytes(...)` long, zero at the start.
        ranks: the rank of each member, for messages.
        member: this member's position in `ranks`.
        slots: per member, 2 or 4.
        watch: what is known of the other members.
        spin_s: how long to look before sleeping; 0 where members share cores or the GIL.
        on_unreadable: the members try to read each other's memory, and this is called once where
            they cannot; None: they do not try.
    """

    def __init__(
        self,
        memory: mmap.mmap,
        ranks: tuple[int, ...],
        member: int,
        slot_bytes: int,
        *,
        slots: int = 2,
        watch: Watch | None = None,
        spin_s: float = 0.0,
        on_unreadable: Callable[[], None] | None = None,
    ) -> None:
        self.ranks, self.member, self.slot_bytes, self._turns = ranks, member, slot_bytes, slots
        self.on_unreadable = on_unreadable
        self.directly: Any = None  # a `direct.Directly`, once they have tried
        self.caller = Caller()
        self.watch, self._spin_s = watch or _Nobody(), spin_s
        self._bytes = np.frombuffer(memory, np.uint8)
        self._words = memoryview(memory).cast("I")
        self._quads = memoryview(memory).cast("Q")
        self._address = self._bytes.ctypes.data + member * _PAGE + _COUNT
        self._counts = [(m * _PAGE + _COUNT) // 4 for m in range(len(ranks))]
        self._others = [m for m in range(len(ranks)) if m != member]
        self._slots = [self._slots_of(m) for m in range(len(ranks))]
        self._calls = 0
        self.note = np.zeros(_NOTE_HEAD.size, np.uint8)
        self._details: Callable[[], list[str]] = list
        self._shared_error: CollectiveError | None = None
        self._barriers = self._words[self._counts[member]]

    @staticmethod
    def size_bytes(members: int, slot_bytes: int, slots: int = 2) -> int:
        """How much memory a segment takes at most (pages nobody touches cost nothing)."""
        return members * (_PAGE + slots * slot_bytes)

    def _slots_of(self, member: int) -> np.ndarray:
        size = self._turns * self.slot_bytes
        start = len(self.ranks) * _PAGE + member * size
        return self._bytes[start : start + size].reshape(self._turns, self.slot_bytes)

    def own_slot(self) -> np.ndarray:
        """Where this member writes before the next barrier; uint8 [slot_bytes]."""
        return self._slots[self.member][(self._barriers + 1) % self._turns]

    def slot(self, member: int, back: int = 0) -> np.ndarray:
        """What `member` wrote before the last barrier, or `back` before; uint8 [slot_bytes]."""
        return self._slots[member][(self._barriers - back) % self._turns]

    def announce(self, call: str, tensors: str, details: Callable[[], list[str]] = list) -> None:
        """Say which collective this member is in, from the next barrier on.

        `details` gives its tensors one by one; `tensors` may be too short for them.
        """
        self._calls += 1
        self._details = details
        caller = self.caller
        sentence = f"{call} of {caller.what or tensors}"
        exact = zlib.crc32(caller.exact, self._calls & _MASK)
        fingerprint = zlib.crc32(_bytes(sentence)) << 32 | exact
        where = f" ({caller.where})" if caller.where else ""
        text = _bytes(f"{sentence} #{self._calls}{where}{caller.thread_text}")
        thread, known = _numbers(caller.thread, caller.threads)
        text = text[: NOTE_BYTES - _NOTE_HEAD.size - len(known)]
        head = _NOTE_HEAD.pack(fingerprint, thread, len(known) // 4, len(text))
        self.note = np.frombuffer(head + known + text, np.uint8)

    def check(self) -> None:
        """After the barrier: raise MismatchError unless all members announced the same.

        All members see the same notes, so all raise, and the next collective works.
        """
        quads, start = self._quads, self._note_start(0, self._barriers) // 8
        own = start + self.member * (_PAGE // 8)
        for member in self._others:
            at = start + member * (_PAGE // 8)
            if quads[at] != quads[own]:
                raise self._shared(self._difference() + self._first_different_tensor())
            if quads[at + 1] != quads[own + 1] and self._are_crossed():
                raise self._shared(
                    f"{self._difference()}; these threads launch collectives in another order on "
                    "these ranks; launch them from one thread, or let the threads take turns"
                )

    def _shared(self, told: str) -> MismatchError:
        self._shared_error = MismatchError(told)
        return self._shared_error

    def _are_crossed(self) -> bool:
        threads, known = [], []
        for member in range(len(self.ranks)):
            note = self._note_of(member, self._barriers)
            _, thread, count, _ = _NOTE_HEAD.unpack_from(note)
            threads.append(thread)
            known.append(struct.unpack_from(f"={count}I", note, _NOTE_HEAD.size))
        return are_crossed(threads, known)

    def _difference(self) -> str:
        calls: dict[str, list[int]] = {}
        for member, rank in enumerate(self.ranks):
            calls.setdefault(self._sentence(member, self._barriers), []).append(rank)
        told = "; ".join(f"{ranks_text(ranks)} called {call}" for call, ranks in calls.items())
        return (
            f"collective #{self._calls} of ranks {list(self.ranks)}: {told}; all ranks of a group "
            "must call the same collectives in the same order with the same shapes and dtypes; "
            "look for a branch or a batch that differs between these ranks"
        )

    def _first_different_tensor(self) -> str:
        """One more barrier, to which all members come, because all have seen a difference."""
        slot, text = self.own_slot(), json.dumps(self._details()).encode()
        fitting = text if len(text) <= len(slot) - _SIZE.size else b"[]"
        packed = _SIZE.pack(len(fitting)) + fitting
        slot[: len(packed)] = np.frombuffer(packed, np.uint8)
        try:
            self.barrier([(0, len(packed))] * len(self.ranks))
        except CollectiveError as error:
            self.fail(error)  # but the difference is what counts
            return ""
        lists = [self._details_of(member) for member in range(len(self.ranks))]
        # So few the sentences show by themselves.
        is_short = max(map(len, lists)) <= SHOWN
        for at in zip_longest(*lists, fillvalue="no more"):
            if len(set(at)) > 1 and not is_short:
                told = ", ".join(f"rank {rank} has {one}" for rank, one in zip(self.ranks, at))
                return f"; the first tensors that differ: {told}"
        return ""

    def _details_of(self, member: int) -> list[str]:
        # No more than there is: all pages of all slots would be much memory.
        slot = self.slot(member)
        (size,) = _SIZE.unpack(slot[: _SIZE.size].tobytes())
        return json.loads(slot[_SIZE.size : _SIZE.size + size].tobytes())

    def _note_start(self, member: int, barrier: int) -> int:
        return member * _PAGE + _NOTES + (barrier & 1) * NOTE_BYTES

    def _note_of(self, member: int, barrier: int) -> bytes:
        start = self._note_start(member, barrier)
        return self._bytes[start : start + NOTE_BYTES].tobytes()

    def _sentence(self, member: int, barrier: int) -> str:
        note = self._note_of(member, barrier)
        _, _, known, length = _NOTE_HEAD.unpack_from(note)
        start = _NOTE_HEAD.size + 4 * known
        return note[start : start + length].decode(errors="replace") or "a collective"

    def barrier(self, needs: Sequence[Span] = ()) -> None:
        """Return when all members have come here as often as this one.

        `needs` says by member which bytes of this member's slot it reads: where they do not share
        this memory, these are brought to them; (): nobody reads any. Raises as `wait` does.
        """
        self.arrive(needs)
        self.wait()

    @property
    def barriers(self) -> int:
        """To how many barriers this member has come."""
        return self._barriers

    def barriers_of(self, member: int) -> int:
        """To how many another one has come, as far as is seen here."""
        return self._words[self._counts[member]]

    def arrive(self, needs: Sequence[Span] = ()) -> None:
        """Come to the next barrier, without waiting for the others; see `barrier`."""
        self._barriers = (self._barriers + 1) & _MASK
        start = self._note_start(self.member, self._barriers)
        self._bytes[start : start + len(self.note)] = self.note
        futex.add_and_wake(self._address)

    def wait(self) -> None:
        """Return when all members have come to the barrier of this one's last `arrive`.

        Raises:
            RankLostError: a member ended without coming.
            MismatchError: a member waits for this one elsewhere.
            CollectiveError: this group has failed before.
        """
        for member in self._others:
            if self._is_behind(member):
                self._wait_for(member)
        futex.fence()
        self.refuse_if_failed()

    def _is_behind(self, member: int) -> bool:
        return ((self._words[self._counts[member]] - self._barriers) & _MASK) >= _HALF

    def _wait_for(self, member: int) -> None:
        start_s = time.monotonic()
        while time.monotonic() - start_s < self._spin_s:
            if not self._is_behind(member):
                return
        try:
            self._sleep_until(member, start_s)
        finally:
            PROGRESS.stop_waiting()

    def _sleep_until(self, member: int, start_s: float) -> None:
        report = WaitReport(self.ranks[self.member], start_s)
        address = self._bytes.ctypes.data + member * _PAGE + _COUNT
        elsewhere: Callable[[int], str] | None = None
        while True:
            seen = self._words[self._counts[member]]
            if not self._is_behind(member):
                return
            now_s = time.monotonic()
            if self._words[_FAILED // 4]:
                # Of a rank that ended each member speaks for itself.
                self._refuse_if_ended(now_s - start_s)
                raise self._failure()
            if now_s - start_s > _LOOK_S:
                PROGRESS.look((self.ranks[m] for m in self._others if self._is_behind(m)), now_s)
                self._refuse_if_ended(now_s - start_s)
                if elsewhere is None:
                    elsewhere = self.watch.begin(self.ranks, self.called())
                self._refuse_if_elsewhere(elsewhere)
                report.look(now_s, self._absent)
            futex.wait(address, seen, _LOOK_S)

    def _refuse_if_ended(self, waited_s: float) -> None:
        for other in self._others:
            rank = self.ranks[other]
            # Ended is asked before behind: who came and then ended did its part.
            if self._is_behind(other) and self.watch.has_ended(rank) and self._is_behind(other):
                raise RankLostError(
                    f"rank {rank} (pid {self.watch.pid(rank)}) has ended after "
                    f"{self._last_of(other)}, while rank {self.ranks[self.member]} waited "
                    f"{waited_s:.1f} s in {self.called()}; give every rank the same number of "
                    f"batches, or look at the output of rank {rank} for its error"
                )

    def _refuse_if_elsewhere(self, elsewhere: Callable[[int], str]) -> None:
        for other in self._others:
            call = elsewhere(self.ranks[other]) if self._is_behind(other) else ""
            if call and self._is_behind(other):
                raise MismatchError(
                    f"rank {self.ranks[self.member]} called {self.called()}, while rank "
                    f"{self.ranks[other]} called {call}; all ranks of a group must call the same "
                    "collectives in the same order; look for groups, or a branch, that differ "
                    "between these ranks"
                )

    def fail(self, error: BaseException) -> None:
        """A collective ended here with this error: unless all members have it, the group fails."""
        if self.fails_with(error):
            self.mark_failed(*described(error))

    def fails_with(self, error: BaseException) -> bool:
        """Whether the group fails by this error: not all members have it, and it is the first."""
        return error is not self._shared_error and not self.has_failed()

    def has_failed(self) -> bool:
        """Whether the group has failed."""
        return bool(self._words[_FAILED // 4])

    def refuse_if_failed(self) -> None:
        """Raise why the group has failed, if it has."""
        if self.has_failed():
            raise self._failure()

    def mark_failed(self, kind: str, told: str) -> None:
        """This member has failed with an error of `KINDS`."""
        reason = f"{kind} {self.member} {told}".encode(errors="replace")[:_REASON_BYTES]
        start = self.member * _PAGE + _REASON
        self._bytes[start : start + len(reason)] = np.frombuffer(reason, np.uint8)
        futex.add_and_wake(self._bytes.ctypes.data + _FAILED)

    def leave(self) -> None:
        """Say that nothing will come from this member any more; for one that is elsewhere."""
        self._words[(self.member * _PAGE + _LEFT) // 4] = 1

    def has_left(self, member: int) -> bool:
        """Whether a member said so."""
        return bool(self._words[(member * _PAGE + _LEFT) // 4])

    def _failure(self) -> CollectiveError:
        """The error of a member that waits here, or calls again, after another one has failed."""
        futex.fence()
        for member in range(len(self.ranks)):
            start = member * _PAGE + _REASON
            reason = self._bytes[start : start + _REASON_BYTES].tobytes().rstrip(b"\0")
            if reason:
                kind, _, told = reason.decode(errors="replace").split(" ", 2)
                return KINDS[kind](
                    f"rank {self.ranks[self.member]} called {self.called()}, and rank "
                    f"{self.ranks[member]} has failed in this group: {told}; the group "
                    f"{list(self.ranks)} cannot be used again, since its ranks may have gone on "
                    "from different calls; mend the first error and start the job again"
                )
        raise AssertionError("a group is marked as failed after its reason is written")

    def _absent(self) -> str:
        """This member's call and whom it waits for, as a report says it."""
        absent = [m for m in self._others if self._is_behind(m)]
        told = ", ".join(f"rank {self.ranks[m]} (after {self._last_of(m)})" for m in absent)
        return f"{self.called()} for {told}"

    def called(self) -> str:
        """This member's call, for messages."""
        return self._sentence(self.member, self._barriers)

    def _last_of(self, member: int) -> str:
        count = self._words[self._counts[member]]
        return self._sentence(member, count) if count else "its start"


def described(error: BaseException) -> tuple[str, str]:
    """The name of a class of `KINDS`, and the text, by which the others are told of an error."""
    kind = type(error).__name__ if type(error).__name__ in KINDS else "CollectiveError"
    return kind, str(error) if isinstance(error, CollectiveError) else repr(error)


def _bytes(text: str) -> bytes:
    """A file may have a name that is no UTF-8."""
    return text.encode(errors="backslashreplace")


@functools.lru_cache(maxsize=64)
def _numbers(thread: str, threads: tuple[str, ...]) -> tuple[int, bytes]:
    """Names of threads as they are compared: that of the caller (0: none), and the known ones."""
    if not thread:
        return 0, b""
    numbers = [zlib.crc32(name.encode(errors="replace")) or 1 for name in (thread, *threads)]
    return numbers[0], struct.pack(f"={len(threads)}I", *numbers[1:])
