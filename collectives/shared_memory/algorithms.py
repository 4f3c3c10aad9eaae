"""The collectives on numpy arrays between the members of one segment.

All functions have the same shape: announce, then rounds of (write own slot, barrier, read slots).
The arrays are contiguous; results are written into arrays of the caller, an `Endpoint`.

Cost of an all-reduce of b bytes over n members, per member. Where they can read each other's memory
(`direct`), and b is large: b read in order to fold a part, b written of what was folded; two
barriers. Else: b written to shared memory, 2 b read, b written, in
chunks that stay in the processor's cache; one barrier per chunk.
"""

import functools
import zlib
from collections.abc import Sequence

import numpy as np

from torch_xdist.collectives.shared_memory.direct import TABLE_BYTES, Directly
from torch_xdist.collectives.shared_memory.flat import Flat, slices
from torch_xdist.collectives.shared_memory.fold import fold
from torch_xdist.collectives.shared_memory.segment import SHOWN, Segment, Span

CHUNK_BYTES = 2 * 2**20
_DIRECT_BYTES = 2**17  # below, each member folds everything by itself: one barrier, not two


def slot_bytes(members: int) -> int:
    """What a slot must hold: one chunk of contributions and one member's folded slice."""
    return CHUNK_BYTES + (CHUNK_BYTES // members + 511) // 256 * 256


def announce(segment: Segment, call: str, arrays: Sequence[np.ndarray]) -> None:
    """Say which collective of which arrays this member is in."""
    segment.announce(call, described(arrays), lambda: [described([x]) for x in arrays])


def described(arrays: Sequence[np.ndarray]) -> str:
    """The dtypes and shapes, as a message shows them: "float32[3, 4]"."""
    if len(arrays) > SHOWN:
        total = sum(array.size for array in arrays)
        sizes = zlib.crc32(repr([array.shape for array in arrays]).encode())
        return f"{len(arrays)} x {arrays[0].dtype.name}, {total} elements (shapes {sizes:08x})"
    return ", ".join([_type_text(array.dtype, array.shape) for array in arrays]) or "nothing"


@functools.lru_cache(maxsize=1024)
def _type_text(dtype: np.dtype, shape: tuple[int, ...]) -> str:
    # Kept, since numpy makes a dtype's name anew each time: 2 us of each collective.
    return f"{dtype.name}{list(shape)}"


def all_reduce(
    segment: Segment,
    call: str,
    reduction: str,
    xs: Sequence[np.ndarray],
    outs: Sequence[np.ndarray],
) -> None:
    """Fold every array over the members; all of one dtype. `outs` may be the memory of `xs`."""
    announce(segment, call, xs)
    x, out = Flat(xs), Flat(outs)
    if not x.size:
        _agree(segment)
    elif is_small(x.size * xs[0].itemsize, len(segment.ranks)):
        _reduce_at_once(segment, reduction, x, out, xs[0].dtype)
    elif not _reduce_directly(segment, reduction, xs, outs):
        _reduce_by_chunks(segment, reduction, x, out, xs[0].dtype)


def is_small(size_bytes: int, members: int) -> bool:
    """Whether each member folds everything by itself."""
    return size_bytes * members <= _DIRECT_BYTES * 2


def _agree(segment: Segment, needs: Sequence[Span] = ()) -> None:
    segment.barrier(needs)
    segment.check()


def _reduce_at_once(segment: Segment, reduction: str, x: Flat, out: Flat, dtype: np.dtype) -> None:
    used = x.size * dtype.itemsize
    x.read(0, x.size, segment.own_slot()[:used].view(dtype))
    _agree(segment, [(0, used)] * len(segment.ranks))
    parts = [segment.slot(m)[:used].view(dtype) for m in range(len(segment.ranks))]
    target = out.view(0, x.size)
    folded = np.empty(x.size, dtype) if target is None else target
    fold(reduction, parts, folded)
    if target is None:
        out.write(0, folded)


def _reduce_directly(
    segment: Segment, reduction: str, xs: Sequence[np.ndarray], outs: Sequence[np.ndarray]
) -> bool:
    """Each member folds its part of what it reads of the others, and brings it to all.

    Whether that was possible; where it was not, nothing is done, and nobody has done it.
    """
    size_bytes = sum(x.nbytes for x in xs)
    if segment.on_unreadable is None or size_bytes <= CHUNK_BYTES:
        return False
    if len(xs) * TABLE_BYTES > segment.slot_bytes:
        return False
    if segment.directly is None:
        _agree(segment)
        segment.directly = Directly.among(segment)
        if segment.directly is None:
            segment.on_unreadable()
            segment.on_unreadable = None
            return False
    segment.directly.all_reduce(segment, reduction, Flat(xs), Flat(outs))
    return True


def _reduce_by_chunks(
    segment: Segment, reduction: str, x: Flat, out: Flat, dtype: np.dtype
) -> None:
    """Each member folds its slice of a chunk; the others read it one barrier later.

    Its own slice goes from the array straight into the fold, and the fold straight into the slot of
    the next barrier: whoever read that slot has been at this barrier since.
    """
    members, me = len(segment.ranks), segment.member
    length = CHUNK_BYTES // dtype.itemsize
    before: list[tuple[int, int]] = []
    for start in range(0, x.size + length, length):
        stop = min(start + length, x.size)
        now = slices(start, stop, members) if start < stop else []
        own = segment.own_slot()[:CHUNK_BYTES].view(dtype)
        mine = x.view(*now[me]) if now else None
        for member, (low, high) in enumerate(now):
            if member != me or mine is None:
                x.read(low, high, own[low - start :])
        segment.barrier()
        if not start:
            segment.check()
        for member, (low, high) in enumerate(before):
            out.write(low, _folded(segment.slot(member), high - low, dtype))
        if now:
            low, high = now[me]
            span = slice((low - start) * dtype.itemsize, (high - start) * dtype.itemsize)
            parts = [segment.slot(m)[span].view(dtype) for m in range(members)]
            if mine is not None:
                parts[me] = mine
            fold(reduction, parts, _folded(segment.own_slot(), high - low, dtype))
        before = now


def _folded(slot: np.ndarray, size: int, dtype: np.dtype) -> np.ndarray:
    """Where a slot holds the member's fold, behind the contributions."""
    return slot[CHUNK_BYTES:][: size * dtype.itemsize].view(dtype)


def all_gather(segment: Segment, call: str, x: np.ndarray, out: np.ndarray) -> None:
    """Row m of `out` [members, *x.shape] becomes the `x` of member m."""
    announce(segment, call, [x])
    source, rows = _bytes(x), _rows(out, len(segment.ranks))
    for first, start, stop in _chunks(source.size, CHUNK_BYTES):
        segment.own_slot()[: stop - start] = source[start:stop]
        segment.barrier([(0, stop - start)] * len(segment.ranks))
        if first:
            segment.check()
        for member in range(len(segment.ranks)):
            rows[member, start:stop] = segment.slot(member)[: stop - start]


def all_to_all(segment: Segment, call: str, x: np.ndarray, out: np.ndarray) -> None:
    """Row m of `out` becomes this member's row of the `x` of member m; both [members, ...]."""
    announce(segment, call, [x])
    members, me = len(segment.ranks), segment.member
    source, rows = _rows(x, members), _rows(out, members)
    for first, start, stop in _chunks(source.shape[1], CHUNK_BYTES // members):
        size = stop - start
        segment.own_slot()[: size * members].reshape(members, size)[:] = source[:, start:stop]
        segment.barrier([(size * m, size * (m + 1)) for m in range(members)])
        if first:
            segment.check()
        for member in range(members):
            rows[member, start:stop] = segment.slot(member)[size * me : size * (me + 1)]


def reduce_scatter(
    segment: Segment, call: str, reduction: str, x: np.ndarray, out: np.ndarray
) -> None:
    """`out` becomes the fold of this member's row of every `x` [members, *out.shape]."""
    announce(segment, call, [x])
    members, me, dtype = len(segment.ranks), segment.member, x.dtype
    source, flat = _rows(x, members), out.reshape(-1)
    step = CHUNK_BYTES // members // 16 * 16  # whole elements of every dtype
    for first, start, stop in _chunks(source.shape[1], step):
        size = stop - start
        segment.own_slot()[: size * members].reshape(members, size)[:] = source[:, start:stop]
        segment.barrier([(size * m, size * (m + 1)) for m in range(members)])
        if first:
            segment.check()
        mine = slice(size * me, size * (me + 1))
        parts = [segment.slot(m)[mine].view(dtype) for m in range(members)]
        if size:
            fold(reduction, parts, flat[start // dtype.itemsize : stop // dtype.itemsize])


def permute(
    segment: Segment, call: str, sources: Sequence[int], x: np.ndarray, out: np.ndarray
) -> None:
    """`out` becomes the `x` of member sources[me], zeros where that is -1.

    A broadcast from member r is the case that all sources are r.
    """
    announce(segment, call, [x])
    data, result = _bytes(x), _bytes(out)
    source = sources[segment.member]
    for first, start, stop in _chunks(data.size, CHUNK_BYTES):
        if segment.member in sources:
            segment.own_slot()[: stop - start] = data[start:stop]
        segment.barrier([(0, stop - start if one == segment.member else 0) for one in sources])
        if first:
            segment.check()
        result[start:stop] = segment.slot(source)[: stop - start] if source >= 0 else 0


def _chunks(total: int, step: int) -> list[tuple[bool, int, int]]:
    """(is the first, start, stop) of each chunk; one empty chunk where there is nothing."""
    starts = range(0, max(total, 1), step)
    return [(not start, start, min(start + step, total)) for start in starts]


def _bytes(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1).view(np.uint8)


def _rows(array: np.ndarray, members: int) -> np.ndarray:
    return array.reshape(-1).view(np.uint8).reshape(members, -1 if array.size else 0)
