"""What differs between two programs, in the words of who wrote the step."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from torch_xdist.core.trace.plans import Plan, flat
from torch_xdist.core.trace.tensor_types import TensorType
from torch_xdist.core.trace.trace import Entry, is_alike, rows_of

# Kinds; the metrics count each as `CompiledAgain.KIND`.
SHAPE, DTYPE, LAYOUT, CONSTANT = "shape", "dtype", "layout", "constant"
OPERATORS, RESULTS, BUFFERS, STATE = "operators", "results", "buffers", "state"

_LAST_BATCH = (
    "most likely the last batch of a loader: DataLoader(drop_last=True), or"
    " MpDeviceLoader(pad_to={0: %d})"
)
REMEDIES = {
    SHAPE: "bring it to one size, or to a few: MpDeviceLoader(pad_to=...) or (buckets=...)",
    DTYPE: "let every step have the same dtypes",
    LAYOUT: "let every step have the same layout, with .contiguous() for example",
    CONSTANT: "a Python number in the step is part of its program: make it a tensor on the device",
    OPERATORS: "Python took another way through the step: torch.where instead of `if`, or expect a"
    " program for each way",
    RESULTS: "tensors of the step are kept that were not before, or no longer: keep .detach()ed"
    " ones, or numbers through xm.add_step_closure",
    BUFFERS: "a tensor that the step overwrites is held by somebody else, or no longer",
    STATE: "set it once, before the first step",
}
_SHOWN = 3


class Known(NamedTuple):
    """The key of a program (`Launch.key`): the entries, the slots of leaves and results, ...

    Attributes:
        mask: of the leaves, which buffers are given away.
        place: the device, or how the leaves lie in SPMD mode.
        state: global state of torch and JAX.
    """

    entries: tuple[Entry, ...]
    leaves: tuple[int, ...]
    mask: tuple[bool, ...]
    outs: tuple[int, ...]
    place: Any
    state: Any


class Difference(NamedTuple):
    """One difference.

    Attributes:
        what: in words.
        remedy: what to do against it.
        slot: of the known program, where it shows; None for nowhere.
        name: with `kind`, equal where the cause is.
    """

    kind: str
    what: str
    remedy: str
    slot: int | None = None
    name: str = ""


def nearest(known: Sequence[Known], new: Known) -> Known:
    """Of the known programs the one with most in common; of equals the last."""
    return max(reversed(known), key=lambda old: (_common(old, new), old.leaves == new.leaves))


def _common(old: Known, new: Known) -> tuple[int, int]:
    """How many operators agree from the beginning, and how many entries in all."""
    same = sum(map(is_alike, old.entries, new.entries))
    return same, sum(a is b for a, b in zip(old.entries, new.entries))


def difference(old: Known, new: Known) -> Difference:
    """What makes `new` another program than `old`: the first thing found, causes before effects."""
    if len(old.entries) != len(new.entries) or not all(map(is_alike, old.entries, new.entries)):
        return _of_operators(old.entries, new.entries)
    return (
        _of_leaves(old, new)
        or _of_constants(old.entries, new.entries)
        or _of_results(old, new)
        or _of_buffers(old, new)
        or Difference(
            STATE,
            "a setting of torch or JAX (the precision of matrix products, for example), or how"
            " tensors are sharded",
            REMEDIES[STATE],
        )
    )


def _name(entry: Entry) -> str:
    if entry is None:
        return ""
    return entry[0].name if isinstance(entry, tuple) else "a tensor that is read"


def _of_leaves(old: Known, new: Known) -> Difference | None:
    """Another shape, dtype or layout of what is there before the step."""
    pairs = [
        (slot, a, b)
        for slot, (a, b) in enumerate(zip(old.entries, new.entries))
        if isinstance(a, TensorType) and isinstance(b, TensorType) and a is not b
    ]
    if not pairs:
        return None
    kind, chosen = LAYOUT, pairs
    for wanted, field in ((DTYPE, "dtype"), (SHAPE, "shape")):
        found = [pair for pair in pairs if getattr(pair[1], field) != getattr(pair[2], field)]
        if found:
            kind, chosen = wanted, found
    slot, a, b = chosen[0]
    others = f" (and {len(chosen) - 1} more)" if len(chosen) > 1 else ""
    texts = [f"{t!r} with strides {list(t.stride)} from {t.offset}" for t in (a, b)]
    told = texts if kind == LAYOUT else [repr(a), repr(b)]
    remedy = _remedy_of_shape([(a, b) for _, a, b in chosen]) if kind == SHAPE else REMEDIES[kind]
    return Difference(
        kind, f"a tensor it reads is {told[1]}, was {told[0]}{others}", remedy, slot, str(slot)
    )


def _remedy_of_shape(pairs: Sequence[tuple[TensorType, TensorType]]) -> str:
    """A batch that is smaller in its first dim alone is a loader's last one."""
    firsts = {(a.shape[:1], b.shape[:1]) for a, b in pairs}
    if len(firsts) == 1 and all(a.shape[1:] == b.shape[1:] for a, b in pairs):
        ((before, now),) = firsts
        if before and now and now < before:
            return _LAST_BATCH % before
    return REMEDIES[SHAPE]


def _of_constants(old: Sequence[Entry], new: Sequence[Entry]) -> Difference | None:
    """Another Python number, or another argument, of the same operator."""
    for slot, (a, b) in enumerate(zip(old, new)):
        if isinstance(a, tuple) and isinstance(b, tuple) and a[0] is not b[0]:
            changed = [f"{x} -> {y}" for x, y in _arguments(a[0], b[0]) if x != y]
            told = ", ".join(changed[:_SHOWN]) or f"{b[0]!r}, was {a[0]!r}"
            return Difference(
                CONSTANT, f"{_name(b)}: {told}", REMEDIES[CONSTANT], slot, f"{slot} {_name(b)}"
            )
    return None


def _arguments(old: Plan, new: Plan) -> Iterator[tuple[str, str]]:
    """What stands at the same places of two calls, in words."""
    a, b = ([*flat((plan.args, tuple(sorted(plan.kwargs.items()))))] for plan in (old, new))
    if len(a) == len(b):
        yield from zip(map(str, a), map(str, b))
    else:
        yield str(old.args), str(new.args)


def _of_operators(old: Sequence[Entry], new: Sequence[Entry]) -> Difference:
    """More operators, fewer, or others, from the first that differs."""
    pairs = zip(old, new)
    first = next((slot for slot, (a, b) in enumerate(pairs) if not is_alike(a, b)), None)
    if first is None:
        first = min(len(old), len(new))
    was, now = (_told(entries[first:]) for entries in (old, new))
    more = len(rows_of(new)) - len(rows_of(old))
    operators = f"{abs(more)} operator{'s' if abs(more) > 1 else ''}"
    counted = f", {operators} {'more' if more > 0 else 'fewer'} in all" if more else ""
    where = f"{now} in place of {was}" if now != was else f"{now} of other operands"
    # What is new has no slot in the known program; what stood there was recorded near it.
    slot = min(first, len(old) - 1)
    return Difference(OPERATORS, where + counted, REMEDIES[OPERATORS], slot, f"{was} {now}")


def _told(entries: Sequence[Entry]) -> str:
    """The first operator among them by name."""
    return next((_name(entry) for entry in entries if isinstance(entry, tuple)), "the end")


def _of_results(old: Known, new: Known) -> Difference | None:
    """Other slots whose values outlive the step."""
    kept, gone = sorted({*new.outs} - {*old.outs}), sorted({*old.outs} - {*new.outs})
    if not kept and not gone:
        return None
    parts = [f"{len(slots)} {word}" for slots, word in ((kept, "more"), (gone, "fewer")) if slots]
    what = f"{' and '.join(parts)} of its results are kept"
    return Difference(RESULTS, what, REMEDIES[RESULTS], (kept or gone)[0])


def _of_buffers(old: Known, new: Known) -> Difference | None:
    """Other buffers that the program may overwrite."""
    slots = [slot for slot, a, b in zip(new.leaves, old.mask, new.mask) if a != b]
    if not slots:
        return None
    what = f"{len(slots)} of the tensors it reads can be overwritten now, or no longer"
    return Difference(BUFFERS, what, REMEDIES[BUFFERS], slots[0])
