"""Memory of other processes, read where it lies (`process_vm_readv`): an array goes from one rank
to another in one copy, instead of two through the shared memory.

The kernel allows it to processes of one user that may trace each other. Under Yama that is who
descends from a process that was named (`allow`): the ranks name their parent, of which they are
children. Where it is refused (another user, a container with a namespace of its own, seccomp) the
members of a group find that out together, once, and exchange through the shared memory as before.

Nobody may change or free what is read or written meanwhile: barriers see to that, as for slots.
"""

import contextlib
import ctypes
import os
import struct
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from torch_xdist.collectives.errors import CollectiveError, RankLostError
from torch_xdist.collectives.shared_memory.flat import Flat, slices
from torch_xdist.collectives.shared_memory.fold import REDUCTIONS, wide
from torch_xdist.collectives.shared_memory.segment import Segment

# For each array: where it is, and where its result goes.
TABLE_BYTES = 16
# What is read at once of another member stays in the processor's cache until it is folded.
_CHUNK_BYTES = 2**20
# A process whose memory is gone is known to have ended within the first of them.
_ENDS_S, _LOOK_S, _NAP_S = 2.0, 0.02, 0.001
_SET_PTRACER = 0x59616D61
_TOKEN_BYTES = 16
# Of a member's slot, while the group finds out: its token's place, then whether it has read all.
_PLACE = struct.Struct("=QQ")


class _Span(ctypes.Structure):
    _fields_ = [("address", ctypes.c_void_p), ("bytes", ctypes.c_size_t)]


_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str) -> Callable[..., int]:
    """`name(process, own spans, how many, its spans, how many, flags)`."""
    span = ctypes.POINTER(_Span)
    kinds = (ctypes.c_int, span, ctypes.c_ulong, span, ctypes.c_ulong, ctypes.c_ulong)
    kind = ctypes.CFUNCTYPE(ctypes.c_ssize_t, *kinds, use_errno=True)
    try:
        return kind((name, _libc))
    except AttributeError:  # a C library without it
        return lambda *_: -1


_readv, _writev = _call("process_vm_readv"), _call("process_vm_writev")


def allow() -> None:
    """Let the other children of this process's parent read its memory, where Yama would not."""
    _libc.prctl(_SET_PTRACER, ctypes.c_ulong(os.getppid()), 0, 0, 0)


def read(pid: int, address: int, out: np.ndarray) -> None:
    """Copy the memory of a process into an array, which must be contiguous.

    Raises:
        OSError: it is not allowed, or there is no such process or memory.
    """
    _copy(_readv, pid, address, out)


def write(pid: int, address: int, data: np.ndarray) -> None:
    """Copy an array, which must be contiguous, into the memory of a process; raises as `read`."""
    _copy(_writev, pid, address, data)


def _copy(call: Callable[..., int], pid: int, address: int, array: np.ndarray) -> None:
    done, size, own = 0, array.nbytes, array.ctypes.data
    while done < size:
        # The kernel may stop at a page that it has to fetch.
        ours, theirs = _Span(own + done, size - done), _Span(address + done, size - done)
        moved = call(pid, ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0)
        if moved <= 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        done += moved


class Directly:
    """The members of a group that read each other's memory.

    Args:
        pids: of the members.
    """

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids
        self._scratch = np.empty((2, _CHUNK_BYTES), np.uint8)

    @classmethod
    def among(cls, segment: Segment) -> "Directly | None":
        """Find out together whether every member can read all others; None where one cannot.

        All members call it at the same time; it takes two barriers. A number of a process means
        something else in another namespace, so what is read is a secret of the moment.
        """
        token = np.frombuffer(os.urandom(_TOKEN_BYTES), np.uint8)
        own = np.frombuffer(_PLACE.pack(os.getpid(), token.ctypes.data), np.uint8)
        _put(segment, np.concatenate([own, token]))
        pids = []
        can = True
        for member in range(len(segment.ranks)):
            slot = segment.slot(member)
            pid, address = _PLACE.unpack(slot[: _PLACE.size].tobytes())
            pids.append(pid)
            wanted = slot[_PLACE.size :][:_TOKEN_BYTES]
            can = can and (member == segment.member or _reads(pid, address, wanted))
        _put(segment, np.array([can], np.uint8))
        all_can = all(bool(segment.slot(member)[0]) for member in range(len(segment.ranks)))
        return cls(pids) if all_can else None

    def all_reduce(self, segment: Segment, reduction: str, x: Flat, out: Flat) -> None:
        """Fold `x` over the members into `out`, which may be its memory; the caller has announced.

        Each member folds its part, in the order of members, and brings it to all while it is in the
        processor's cache. In what another one brought nobody else reads that part, so the result
        may take its place at once.
        """
        table = np.concatenate([x.addresses(), out.addresses()])
        segment.own_slot()[: table.nbytes] = table.view(np.uint8)
        with _until_nobody_moves(segment, segment.barriers + 1):
            segment.barrier()
        segment.check()
        with _until_nobody_moves(segment, segment.barriers):
            self._fold_and_bring(segment, reduction, x, out, table.nbytes)
            # Who has returned may change and free what others still read, and has all they write.
            segment.barrier()

    def _fold_and_bring(
        self, segment: Segment, reduction: str, x: Flat, out: Flat, table_bytes: int
    ) -> None:
        members, me = len(segment.ranks), segment.member
        tables = [
            segment.slot(member)[:table_bytes].view(np.uint64).reshape(2, -1).copy()
            for member in range(members)
        ]
        span = slices(0, x.size, members)[me]
        # Each begins with another member, so that not all write to one.
        others = [(me + far) % members for far in range(1, members)]
        for (index, start, own), (_, _, into) in zip(x.places(*span), out.places(*span)):
            step = _CHUNK_BYTES // own.itemsize
            for at in range(0, own.size, step):
                offset = (start + at) * own.itemsize
                sources, targets = (
                    [int(one[side, index]) + offset for one in tables] for side in (0, 1)
                )
                segment.refuse_if_failed()
                folded = into[at : at + step]
                self._fold(segment, reduction, sources, own[at : at + step], folded)
                for member in others:
                    self._move(write, segment, member, targets[member], folded)

    def _fold(
        self, segment: Segment, reduction: str, at: list[int], own: np.ndarray, into: np.ndarray
    ) -> None:
        """Fold what lies at those addresses of the members and, of this one, in `own`."""
        first, second = (scratch[: own.nbytes].view(own.dtype) for scratch in self._scratch)
        is_narrow, combine = wide(own.dtype) != own.dtype, REDUCTIONS[reduction]
        total = own
        for member, address in enumerate(at):
            part = own if member == segment.member else (second if member else first)
            if member != segment.member:
                self._move(read, segment, member, address, part)
            if is_narrow:
                part = part.astype(np.float32)
            if not member:
                total = part
                continue
            # `into` may be the memory of `own`, which is still to come.
            target = total if is_narrow else into if member >= segment.member else first
            with np.errstate(all="ignore"):
                total = combine(total, part, out=target)
        if is_narrow:
            with np.errstate(all="ignore"):
                into[...] = total

    def _move(
        self,
        move: Callable[[int, int, np.ndarray], None],
        segment: Segment,
        member: int,
        address: int,
        array: np.ndarray,
    ) -> None:
        try:
            move(self._pids[member], address, array)
        except OSError as error:
            raise _unread(segment, member, error) from None


@contextlib.contextmanager
def _until_nobody_moves(segment: Segment, first: int) -> Iterator[None]:
    """Whoever leaves with an error waits until no other member may touch its memory any more.

    A member moves data between barrier `first` and the next one, to which it comes in any case; one
    that comes to the first later than the error sees that the group has failed.
    """
    try:
        yield
    except BaseException as error:
        if segment.barriers == first - 1:
            raise  # it has not come, so nobody has begun
        segment.fail(error)
        if segment.barriers == first:
            segment.arrive()
        while any(_may_move(segment, member, first) for member in range(len(segment.ranks))):
            time.sleep(_NAP_S)
        raise


def _may_move(segment: Segment, member: int, first: int) -> bool:
    is_between = member != segment.member and segment.barriers_of(member) == first
    return is_between and not segment.watch.has_ended(segment.ranks[member])


def _put(segment: Segment, data: np.ndarray) -> None:
    segment.own_slot()[: data.size] = data
    segment.barrier([(0, data.size)] * len(segment.ranks))


def _reads(pid: int, address: int, wanted: np.ndarray) -> bool:
    found = np.zeros(_TOKEN_BYTES, np.uint8)
    try:
        read(pid, address, found)
    except OSError:
        return False
    return bool((found == wanted).all())


def _unread(segment: Segment, member: int, error: OSError) -> CollectiveError:
    """Why the memory of a member cannot be reached any more."""
    rank, own, watch = segment.ranks[member], segment.ranks[segment.member], segment.watch
    end_s = time.monotonic() + _ENDS_S
    while not (has_ended := watch.has_ended(rank)) and time.monotonic() < end_s:
        time.sleep(_LOOK_S)
    if has_ended:
        return RankLostError(
            f"rank {rank} (pid {watch.pid(rank)}) has ended in {segment.called()}, while rank "
            f"{own} read what it brought; look at the output of rank {rank} for its error"
        )
    return CollectiveError(
        f"rank {own} in {segment.called()}: the memory of rank {rank} (pid {watch.pid(rank)}) "
        f"cannot be read any more ({error.strerror}), which it could before; look whether somebody "
        "has changed the rights of that process (PR_SET_DUMPABLE, setuid)"
    )
