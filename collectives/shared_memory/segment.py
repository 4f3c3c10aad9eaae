"""Memory that the members of one group share, and the meeting point in it.

Layout: one header page per member, then two slots per member. A header holds the member's count of
meetings (a futex word), its process number, and for the last two meetings a fingerprint and a
sentence about the collective it is in. Every word has one writer.

The rule that makes this correct: a member writes only its own header and slots, then meets; after
meeting number m it may read the slots of parity m of all members, until it meets again. So one
meeting per exchange is enough: whoever writes parity m again has seen all others at meeting m + 1,
hence done with reading.
"""

import contextlib
import json
import mmap
import os
import struct
import threading
import time
from collections.abc import Callable
from itertools import zip_longest

import numpy as np

from torch_xdist.collectives.errors import CollectiveError, MismatchError, RankLostError
from torch_xdist.collectives.groups import ranks_text
from torch_xdist.collectives.liveness import Process
from torch_xdist.collectives.shared_memory import futex
from torch_xdist.collectives.wait_report import WaitReport

_PAGE = 4096
_COUNT, _PID = 0, 16  # 32-bit words in a header; 64 bytes apart, so that they do not share a line
_NOTES, _NOTE_BYTES = 256, 1024
_NOTE_HEAD = struct.Struct("=QI")  # fingerprint, length of the sentence
_MASK, _HALF = 2**32 - 1, 2**31
_STATUS, _STATUS_BYTES = 2304, 1536
_STATUS_HEAD = struct.Struct("=II")  # version (odd while it is written), length
_SLICE_S = 0.25  # between two looks at whether the others live
TOLD = 3  # tensors that a sentence shows one by one


def size_bytes(members: int, slot_bytes: int) -> int:
    """How much memory a segment takes at most (pages nobody touches cost nothing)."""
    return members * (_PAGE + 2 * slot_bytes)


class Segment:
    """One member's view of the memory of its group.

    Args:
        memory: shared by all members, `size_bytes(...)` long, zero at the start.
        ranks: the rank of each member, for messages.
        member: this member's position in `ranks`.
        pid_of: the process of a member that has not opened this segment yet, 0 where unknown.
        elsewhere: the collective of another group in which a member waits for this one, "" if it
            does not: then neither will ever come.
        spin_s: how long to look before sleeping; 0 where members share cores or the GIL.
    """

    def __init__(
        self,
        memory: mmap.mmap,
        ranks: tuple[int, ...],
        member: int,
        slot_bytes: int,
        *,
        pid_of: Callable[[int], int] = lambda member: 0,
        elsewhere: Callable[[int], str] = lambda member: "",
        spin_s: float = 0.0,
    ) -> None:
        self.ranks, self.member, self.slot_bytes = ranks, member, slot_bytes
        self.where = self.what = ""  # the user's line, and the user's tensors, for messages
        self._pid_of, self._elsewhere, self._spin_s = pid_of, elsewhere, spin_s
        self._bytes = np.frombuffer(memory, np.uint8)
        self._words = memoryview(memory).cast("I")
        self._address = self._bytes.ctypes.data
        self._heads = [m * _PAGE for m in range(len(ranks))]
        self._others = [m for m in range(len(ranks)) if m != member]
        self._slots = [self._both_slots(m) for m in range(len(ranks))]
        self._processes: dict[int, Process] = {}
        self._fence = threading.Lock()
        self._calls = 0
        self._own_note = np.zeros(_NOTE_HEAD.size, np.uint8)
        self._details: Callable[[], list[str]] = list
        self._met = self._words[self._heads[member] // 4 + _COUNT]
        self._words[self._heads[member] // 4 + _PID] = os.getpid()

    def _both_slots(self, member: int) -> tuple[np.ndarray, np.ndarray]:
        start = len(self.ranks) * _PAGE + 2 * member * self.slot_bytes
        pair = self._bytes[start : start + 2 * self.slot_bytes]
        return pair[: self.slot_bytes], pair[self.slot_bytes :]

    def own_slot(self) -> np.ndarray:
        """Where this member writes before the next meeting; uint8 [slot_bytes]."""
        return self._slots[self.member][(self._met + 1) & 1]

    def slot(self, member: int) -> np.ndarray:
        """What `member` wrote before the last meeting; uint8 [slot_bytes]."""
        return self._slots[member][self._met & 1]

    def pid(self, member: int) -> int:
        """The process of a member, 0 while it is unknown."""
        return self._words[self._heads[member] // 4 + _PID] or self._pid_of(member)

    def announce(
        self, fingerprint: int, sentence: str, details: Callable[[], list[str]] = list
    ) -> None:
        """Say which collective this member is in, from the next meeting on.

        `details` gives its tensors one by one; the sentence may be too short for them.
        """
        self._calls += 1
        self._details = details
        text = f"{sentence} #{self._calls}"
        if self.where:
            text += f" ({self.where})"
        encoded = text.encode()[: _NOTE_BYTES - _NOTE_HEAD.size]
        head = _NOTE_HEAD.pack(fingerprint, len(encoded))
        self._own_note = np.frombuffer(head + encoded, np.uint8)

    def check(self) -> None:
        """After the meeting: raise MismatchError unless all members announced the same."""
        own = self._fingerprint(self.member)
        if any(self._fingerprint(m) != own for m in self._others):
            told = self._difference()
            raise MismatchError(told + self._first_different_tensor())

    def _fingerprint(self, member: int) -> int:
        return self._note(member, self._met)[:8].view(np.uint64)[0].item()

    def _difference(self) -> str:
        calls: dict[str, list[int]] = {}
        for member, rank in enumerate(self.ranks):
            calls.setdefault(self._sentence(member, self._met), []).append(rank)
        told = "; ".join(f"{ranks_text(ranks)} called {call}" for call, ranks in calls.items())
        return (
            f"collective #{self._calls} of ranks {list(self.ranks)}: {told}; all ranks of a group "
            "must call the same collectives in the same order with the same shapes and dtypes; "
            "look for a branch or a batch that differs between these ranks"
        )

    def _first_different_tensor(self) -> str:
        """One more meeting, to which all members come, because all have seen a difference."""
        slot, text = self.own_slot(), json.dumps(self._details()).encode()
        fitting = text if len(text) < len(slot) else b"[]"
        slot[: len(fitting) + 1] = np.frombuffer(fitting + b"\0", np.uint8)
        with contextlib.suppress(CollectiveError, ValueError):  # the difference is what counts
            self.meet()
            slots = [self.slot(m).tobytes() for m in range(len(self.ranks))]
            lists = [json.loads(slot[: slot.index(b"\0")]) for slot in slots]
            is_short = max(map(len, lists)) <= TOLD
            for at in zip_longest(*lists, fillvalue="no more"):
                if len(set(at)) > 1 and not is_short:
                    told = ", ".join(f"rank {rank} has {one}" for rank, one in zip(self.ranks, at))
                    return f"; the first tensors that differ: {told}"
        return ""

    def _note(self, member: int, meeting: int) -> np.ndarray:
        start = self._heads[member] + _NOTES + (meeting & 1) * _NOTE_BYTES
        return self._bytes[start : start + _NOTE_BYTES]

    def _sentence(self, member: int, meeting: int) -> str:
        note = self._note(member, meeting)
        _, length = _NOTE_HEAD.unpack(note[: _NOTE_HEAD.size].tobytes())
        text = note[_NOTE_HEAD.size : _NOTE_HEAD.size + length]
        return text.tobytes().decode(errors="replace") or "a collective"

    def meet(self) -> None:
        """Return when all members have come here as often as this one.

        Raises:
            RankLostError: a member ended without coming.
            MismatchError: a member waits for this one elsewhere. The meeting did not take place.
        """
        try:
            self._meet()
        except MismatchError:
            self._met = (self._met - 1) & _MASK
            self._words[self._heads[self.member] // 4 + _COUNT] = self._met
            raise

    def _meet(self) -> None:
        self._met = (self._met + 1) & _MASK
        self._note(self.member, self._met)[: len(self._own_note)] = self._own_note
        # Taking a lock is the only full fence Python has; x86 does not need it, ARM does.
        with self._fence:
            self._words[self._heads[self.member] // 4 + _COUNT] = self._met
        futex.wake(self._address + self._heads[self.member])
        for member in self._others:
            if self._behind(member):
                self._wait_for(member)
        with self._fence:
            pass

    def _behind(self, member: int) -> bool:
        count = self._words[self._heads[member] // 4 + _COUNT]
        return ((count - self._met) & _MASK) >= _HALF

    def _wait_for(self, member: int) -> None:
        start_s = time.monotonic()
        while time.monotonic() - start_s < self._spin_s:
            if not self._behind(member):
                return
        narrator = WaitReport(self.ranks[self.member], start_s)
        address = self._address + self._heads[member]
        while True:
            seen = self._words[self._heads[member] // 4 + _COUNT]
            if not self._behind(member):
                return
            futex.wait(address, seen, _SLICE_S)
            now_s = time.monotonic()
            if now_s - start_s > _SLICE_S:
                self._look_around(member, now_s - start_s)
                narrator.look(now_s, self._absent)

    def _look_around(self, member: int, waited_s: float) -> None:
        for other in self._others:
            # Ended is asked before behind: who came and then ended did its part.
            if self.ended(other) and self._behind(other):
                raise RankLostError(
                    f"rank {self.ranks[other]} (pid {self.pid(other)}) has ended after "
                    f"{self._last_of(other)}, while rank {self.ranks[self.member]} waited "
                    f"{waited_s:.1f} s in {self._call()}; give every rank the same number of "
                    f"batches, or look at the output of rank {self.ranks[other]} for its error"
                )
            call = self._elsewhere(other)
            if call and self._behind(other):
                raise MismatchError(
                    f"{ranks_text([self.ranks[self.member]])} called {self._call()}, while "
                    f"{ranks_text([self.ranks[other]])} called {call} and waits there; all ranks "
                    "of a group must call the same collectives in the same order; look for groups, "
                    "or a branch, that differ between these ranks"
                )

    def ended(self, member: int) -> bool:
        """Whether the process of a member is known and has ended."""
        pid = self.pid(member)
        if not pid or pid == os.getpid():
            return False
        process = self._processes.get(member)
        if process is None or process.pid != pid:
            process = self._processes[member] = Process(pid)
        return process.ended()

    def _absent(self) -> str:
        """This member's call and whom it waits for, as a narrator says it."""
        absent = [m for m in self._others if self._behind(m)]
        told = ", ".join(f"rank {self.ranks[m]} (after {self._last_of(m)})" for m in absent)
        return f"{self._call()} for {told}"

    def _call(self) -> str:
        return self._sentence(self.member, self._met)

    def _last_of(self, member: int) -> str:
        count = self._words[self._heads[member] // 4 + _COUNT]
        if not count:
            return "its start"
        return self._sentence(member, count)

    def set_status(self, status: bytes) -> None:
        """Say what this member waits for; empty: nothing. Any member may read it at any time."""
        area, version = self._status_area(self.member)
        area[: _STATUS_HEAD.size].view(np.uint32)[0] = version + 1
        with self._fence:
            cut = status[: _STATUS_BYTES - _STATUS_HEAD.size]
            area[_STATUS_HEAD.size : _STATUS_HEAD.size + len(cut)] = np.frombuffer(cut, np.uint8)
            area[4:8].view(np.uint32)[0] = len(cut)
        area[: _STATUS_HEAD.size].view(np.uint32)[0] = version + 2

    def status(self, member: int) -> tuple[int, bytes]:
        """(version, what the member waits for); empty also while it is being changed."""
        area, before = self._status_area(member)
        with self._fence:
            length = int(area[4:8].view(np.uint32)[0])
            text = area[_STATUS_HEAD.size : _STATUS_HEAD.size + length].tobytes()
        _, after = self._status_area(member)
        return (after, text) if before == after and not before & 1 else (after, b"")

    def _status_area(self, member: int) -> tuple[np.ndarray, int]:
        start = self._heads[member] + _STATUS
        area = self._bytes[start : start + _STATUS_BYTES]
        return area, int(area[:4].view(np.uint32)[0])

    def close(self) -> None:
        """Give back the descriptors of the other processes."""
        for process in self._processes.values():
            process.close()
        self._processes.clear()


def anonymous(members: int, slot_bytes: int) -> mmap.mmap:
    """Memory for a group of threads of this process."""
    return mmap.mmap(-1, size_bytes(members, slot_bytes))


def mapped(descriptor: int, members: int, slot_bytes: int) -> mmap.mmap:
    """The memory behind a descriptor, which is closed."""
    try:
        return mmap.mmap(descriptor, size_bytes(members, slot_bytes))
    finally:
        os.close(descriptor)
