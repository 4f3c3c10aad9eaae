"""The trace of a device: cutting it, which is the only way that pending rows run.

A cut is a transaction. It takes the tape out of the trace, compiles, and runs; where anything fails
before XLA began to run, the tape goes back, every tensor is what it was, and the cut can be asked
for again. Threads have a trace each, so what one records does not depend on the others; a value
that is pending in another thread's trace is computed there when it is needed.
"""

import copy
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Sequence, Set

import jax

from torch_xdist import metrics, settings, world
from torch_xdist.collectives.errors import CollectiveError
from torch_xdist.core.programs.launch import Launch, live_values
from torch_xdist.core.run import analysis, cuts
from torch_xdist.core.run.cuts import Cut, Rounds
from torch_xdist.core.run.tape_run import TapeRun
from torch_xdist.core.sharding.layout import unpadded
from torch_xdist.core.tapes.partial_run import copy_rows, has_collective, needed_rows
from torch_xdist.core.trace import notes, op_counts, placeholders
from torch_xdist.core.trace.trace import Tape, Trace
from torch_xdist.core.trace.values import Device, Value, ViewValue, root_of
from torch_xdist.errors import CutError, OutOfMemoryError, ValueLostError, in_forked_child

_STUCK = (
    "xla: the pending program could not be compiled, or had no room, so it stays pending. Tensors"
    " that need nothing of what failed can be read; delete those that do, and the next sync leaves"
    " it out"
)
# Who is told of a trace whose tape is long.
WHEN_LONG: list[Callable[["DeviceTrace"], None]] = []
# How many failed epochs a trace can explain.
_EXPLAINED = 16


class DeviceTrace(Trace):
    """What one thread recorded for one device, and how it runs.

    Attributes:
        cut_count: how often its thread cut it.
        last_cut: the record of the last time.
        most: how many slots may be pending before a cut is forced.
        rounds: what it knows of a loop that may end no step.
        observer: called with each of its runs (a TapeRun) and its launch, before XLA begins.
        before_cut: called before anything pending runs.
    """

    __slots__ = (
        "__weakref__", "_is_stuck", "_lost", "before_cut", "cut_count", "last_cut", "most",
        "observer", "rounds",
    )  # fmt: skip

    def __init__(self, device: Device, limit: int = sys.maxsize) -> None:
        self.rounds = Rounds()
        self.most = limit
        super().__init__(device, device.random, min(limit, self.rounds.patience))
        self.cut_count = 0
        self.last_cut: Cut | None = None
        self.observer: Callable[[TapeRun, Launch], None] | None = None
        self.before_cut: Callable[[], None] | None = None
        # Whether the tape is one that could not be compiled.
        self._is_stuck = False
        # Why the values of an epoch are gone.
        self._lost: dict[int, str] = {}

    def cut(
        self, reason: str, wanted: Sequence[Value] = (), *, cause: str = analysis.USER
    ) -> list[jax.Array]:
        """Run every pending row once; returns the buffers of the wanted values.

        Every living value of the trace holds a buffer afterwards. Exception: wanted values that
        need none of the pending collectives are computed by themselves, and all stays pending. So
        are wanted values of a tape that could not be compiled, which may not need what cannot.

        Args:
            cause: who asked for a sync (see `analysis`).
        """
        if self.before_cut is not None:
            self.before_cut()
        if placeholders.are_alive():
            self._set_placeholders_aside()
        if not wanted and not self.tape.entries:
            # Nothing is pending; what is recorded from now on is timed from now.
            self.tape.since_s = time.perf_counter()
            return []
        while True:
            tape = self.tape
            slots = [self.slot_of(value) for value in wanted]
            asked_s = time.perf_counter()
            with self.lock:
                if self.tape is not tape:
                    continue
                metrics.note((), ("DeviceLockWait", time.perf_counter() - asked_s, 1))
                if slots and (tape.collectives or self._is_stuck):
                    needed = needed_rows(tape, slots)
                    if not has_collective(tape, needed):
                        return self._run_part(tape, slots, needed, reason, cause)
                if self._is_stuck:
                    self._drop_unneeded()
                    self._is_stuck = False
                    continue
                return self._run_all(tape, slots, reason, cause)

    def _set_placeholders_aside(self) -> None:
        """What reads placeholders cannot run: it leaves the tape."""
        with self.lock:
            hollow = placeholders.dependents(self.tape)
            if hollow:
                self._drop_unneeded(hollow)

    def _run_part(
        self, tape: Tape, slots: Sequence[int], needed: set[int], reason: str, cause: str
    ) -> list[jax.Array]:
        """Run only these rows of a tape, which stays as it is."""
        part = Tape()
        places = copy_rows(tape, sorted(needed), part)
        return TapeRun(self, part, ()).results([places[slot] for slot in slots], reason, cause)

    def _run_all(
        self, tape: Tape, slots: Sequence[int], reason: str, cause: str
    ) -> list[jax.Array]:
        """Run a tape in whose place a new one goes."""
        run = TapeRun(self, tape, ())
        started_s = time.perf_counter()
        try:
            self.tape = Tape()
            self.limit = min(self.most, self.rounds.patience)
            self.finish_writes(tape)
            run.live = live_values(tape)
            results = run.results(slots, reason, cause)
            self._count(run, started_s)
            return results
        except BaseException as error:
            if run.is_done:
                raise
            is_gone = any(buffer.is_deleted() for buffer in tape.buffers.values())
            # What was exchanged with other ranks cannot be exchanged again by this one alone.
            if is_gone or (run.is_entered and tape.collectives):
                loss = self._loss(run, error)
                if loss is error:
                    raise
                raise loss from error
            run.live = ()  # The error may outlive tensors whose rows the next cut leaves out.
            is_refused = run.is_compiling or isinstance(error, OutOfMemoryError)
            self._is_stuck = is_refused and isinstance(error, Exception)
            if self._is_stuck:
                error.add_note(_STUCK)
            self._restore(tape)
            raise

    def _count(self, run: TapeRun, started_s: float) -> None:
        """Let the metrics count the rows of a tape that ran; the next one is recorded from now."""
        tape, made = run.tape, run.program
        if made is None or tape.counted:
            op_counts.count_rows(tape)
        else:
            metrics.note(made.tally, ("LazyTracing", started_s - tape.since_s, made.rows))
        self.tape.since_s = time.perf_counter()

    def _drop_unneeded(self, hollow: Set[int] = frozenset()) -> None:
        """Leave out the rows that no living value and no collective needs.

        What stands in the hollow slots goes to a trace of its own, which never runs.
        """
        tape = self.tape
        op_counts.count_rows(tape)
        try:
            self.tape = Tape()
            self.finish_writes(tape)
            live = live_values(tape)
            apart = [value for value in live if value.slot in hollow]
            live = [value for value in live if value.slot not in hollow]
            kept = needed_rows(tape, [*(v.slot for v in live), *tape.collectives])
            self._absorb(tape, live, kept)
            self.tape.counted = len(self.tape.entries)
            if apart:
                aside = DeviceTrace(self.device)
                aside._absorb(tape, apart, needed_rows(tape, [v.slot for v in apart]))
                for value in apart:
                    value.trace = aside
        except BaseException:
            self._restore(tape)
            raise

    def _restore(self, tape: Tape) -> None:
        """Put a tape back; what was recorded meanwhile goes behind it."""
        if self.tape is tape:
            return
        # As another object: whoever is recording may have slots of both tapes, and shall see it.
        late, self.tape = self.tape, copy.copy(tape)
        if late.entries:
            slots = [value.slot for value in late.values if value.epoch == late.epoch]
            self._absorb(late, late.values, needed_rows(late, [*slots, *late.collectives]))

    def _absorb(self, source: Tape, values: Sequence[Value], slots: set[int]) -> None:
        """Record rows of another tape anew on this trace's; values pending there come along."""
        pending = [value for value in values if value.epoch == source.epoch]
        while True:
            tape = self.tape
            places = copy_rows(source, sorted(slots), tape)
            for value in pending:
                self.list_value(value, tape)
                if self.tape is tape and value.epoch == source.epoch:
                    value.slot, value.epoch = places[value.slot], tape.epoch
            pending = [value for value in pending if value.epoch == source.epoch]
            if self.tape is tape or not pending:
                return

    def _loss(self, run: TapeRun, error: BaseException) -> BaseException:
        """The error of a program that failed after it had taken over its leaves."""
        gone = Counter(repr(value.type) for value in run.live)
        named = ", ".join(f"{n} x {type_}" if n > 1 else type_ for type_, n in gone.items())
        where = run.cut.where if run.cut is not None else ""
        text = (
            f"the program of {where} failed while it ran ({type(error).__name__}: {error}), when"
            f" its operands were used up. Gone are the values of {len(run.live)} tensors:"
            f" {named or 'none'}; load them anew, from a checkpoint for example"
        )
        self._lost[run.tape.epoch] = text
        while len(self._lost) > _EXPLAINED:
            del self._lost[next(iter(self._lost))]
        if not isinstance(error, Exception) or isinstance(error, CollectiveError):
            error.add_note(text)
            return error
        return ValueLostError(f"{self.device}: {text}")

    def fetch(self, value: Value) -> jax.Array:
        """The buffer of a root that was pending here when it was looked at.

        Another thread may be running it at this moment, or have moved it to its own trace. Raises
        ValueLostError where the program that should have made it failed.
        """
        with self.lock:
            if value.trace is self and value.buffer is None and value.epoch == self.tape.epoch:
                return self._run_for_another(value)
            owner, buffer = value.trace, value.buffer
        if buffer is not None:
            return buffer
        if owner is not self:
            return owner.fetch(value)
        raise ValueLostError(
            f"{self.device}: a tensor {value.type!r} has lost its value: "
            + self._lost.get(value.epoch, "its storage was freed, or it was never written")
        )

    def _run_for_another(self, value: Value) -> jax.Array:
        """Compute one value for another thread, at a moment that is not this trace's choice."""
        return self.run_only([value], cuts.OTHER_THREAD)[0]

    def run_only(
        self, values: Sequence[Value], reason: str, *, cause: str = analysis.USER
    ) -> list[jax.Array]:
        """Compute these values, which are pending on the tape, and leave the rest pending.

        All runs where they need a collective: the other ranks run it too.
        """
        with self.lock:
            tape = self.tape
            slots = [self.slot_of(value) for value in values]
            needed = needed_rows(tape, slots)
            if has_collective(tape, needed):
                return self._run_all(tape, slots, reason, cause)
            buffers = self._run_part(tape, slots, needed, reason, cause)
            for value, slot, buffer in zip(values, slots, buffers):
                # This trace's thread may have written the value meanwhile.
                if value.parent is None and value.epoch == tape.epoch and value.slot == slot:
                    value.buffer = buffer
            # What nobody waits for any more would hold its operands until this thread cuts.
            self._drop_unneeded()
        return buffers

    def trim(self) -> None:
        """Run the tape where it has grown to the most; before that say that it is long."""
        if len(self.tape.entries) >= self.most:
            self.cut(cuts.LIMIT)
            return
        self.limit = self.most
        for look in WHEN_LONG:
            look(self)


class _Nowhere(Trace):
    """Where a thread records that has used no device: no value is of its device."""


class _InForkedChild(Trace):
    """Where every thread of such a child records: nowhere."""

    def __init__(self) -> None:
        pass

    @property
    def tape(self) -> Tape:  # type: ignore[override]
        raise in_forked_child()


class _Here(threading.local):
    """Where this thread records.

    Attributes:
        trace: into which it records at present: the trace of the device it used last, or that of
            the function it is recording.
        symbolic: the latter; None outside of such functions.
        by_device: this thread's traces.
    """

    trace: Trace = _Nowhere(Device.__new__(Device), None)
    symbolic: Trace | None = None

    def __init__(self) -> None:
        self.by_device: dict[Device, DeviceTrace] = {}


HERE = _Here()


def trace_of_thread(device: Device) -> DeviceTrace:
    """This thread's trace of a device; never that of a function it is recording."""
    trace = HERE.by_device.get(device)
    if trace is None:
        check_process()
        if world.replica() is not None:
            # A rank begins here, which may have set variables before its first use of the device.
            settings.reread()
        notes.decide()
        trace = HERE.by_device[device] = DeviceTrace(device, settings.current().trace_limit)
        with _traces_lock:
            _traces.add(trace)
    return trace


def is_forked() -> bool:
    """Whether this process was forked from one that had used a device, and so cannot use one."""
    return isinstance(_Here.trace, _InForkedChild)


def check_process() -> None:
    """Raise DeviceError in a process that was forked from one that had used a device."""
    if is_forked():
        raise in_forked_child()


def forget_in_forked_child() -> None:
    """This process was forked from one that had used a device: nothing can be recorded here."""
    HERE.__dict__.clear()
    HERE.by_device = {}
    _Here.trace = _InForkedChild()


def trace_here(device: Device) -> Trace:
    """Where this thread records for a device now; `HERE.trace` is that afterwards."""
    trace = HERE.trace = HERE.symbolic or trace_of_thread(device)
    return trace


def traces_of(device: Device) -> list[DeviceTrace]:
    """The traces of a device."""
    return [trace for trace in all_traces() if trace.device is device]


_traces: weakref.WeakSet[DeviceTrace] = weakref.WeakSet()
_traces_lock = threading.Lock()


def all_traces() -> list[DeviceTrace]:
    """The traces of all devices and threads, also of ended ones whose values live on."""
    with _traces_lock:
        return list(_traces)


def buffer_of(value: Value, reason: str = cuts.READ) -> jax.Array:
    """The JAX array of a value, cutting its trace where it is pending."""
    buffer = value.buffer
    if buffer is not None and value.trace.device.layout is None:
        return buffer
    return buffers_of([value], reason)[0]


def buffers_of(values: Sequence[Value], reason: str = cuts.READ) -> list[jax.Array]:
    """The JAX arrays of several values, with at most one cut per device.

    Raises CutError where a value stands for one of a function that is being recorded.
    """
    found = {id(value): value.buffer for value in values}
    pending: dict[Device, list[Value]] = {}
    for value in values:
        root = root_of(value)
        if found[id(value)] is not None:
            continue
        if root.trace.is_symbolic and root.buffer is None:
            raise CutError(
                f"{reason}: the value of a tensor {value.type!r} was asked for in a function that"
                " is being recorded (a body of control flow, a decomposition), where no tensor has"
                " values; compute with tensors, torch.where for example, instead of Python numbers"
            )
        is_root = not isinstance(value, ViewValue)
        if is_root and value.trace is not trace_of_thread(value.trace.device):
            found[id(value)] = value.trace.fetch(value)
        else:
            pending.setdefault(value.trace.device, []).append(value)
    for device, mine in pending.items():
        buffers = trace_of_thread(device).cut(reason, mine)
        found.update((id(value), buffer) for value, buffer in zip(mine, buffers))
    # Only buffers of the logical device have padding.
    return [unpadded(found[id(value)], value.type.shape) for value in values]
