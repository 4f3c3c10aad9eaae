"""Numbers that follow from what came from the host, computed there: to read one cuts nothing.

A library asks a batch whether its mask is all ones, or an attention mask that it just made. The
answer is in numbers that were uploaded, and in constants. Where whole numbers and truth values lead
to it, CPU torch computes the pending rows behind it, which gives the same bits; the rows stay
pending, and Python does not wait for the device.

The places that a mask selects are such numbers too, and how many they are, which is a shape.

An answer may decide the shapes of the rest of the step, and what is pending becomes one program
with it. So a line that got many answers is cut, and what came before is not compiled again.
"""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_xdist import metrics
from torch_xdist.core.devices import uploaded
from torch_xdist.core.devices.tensor import XlaTensor
from torch_xdist.core.programs.launch import live_values
from torch_xdist.core.run import analysis
from torch_xdist.core.run.device_trace import HERE, DeviceTrace
from torch_xdist.core.tapes import torch_rows
from torch_xdist.core.trace import op_counts, watch
from torch_xdist.core.trace.plans import Plan
from torch_xdist.core.trace.tensor_types import TensorType
from torch_xdist.core.trace.trace import Tape
from torch_xdist.core.trace.user_frames import user_line
from torch_xdist.core.trace.values import Value, ViewValue, root_of
from torch_xdist.progress import PROGRESS

# More are the device's.
_MOST_ROWS = 64
_MOST_ELEMENTS = 1 << 17
_MOST_LEFT_OUT = 1 << 16
# Different answers of a line of the user's, and lines.
_MOST_ANSWERS = 4
_LINES = 1024
# How often a line may ask for shapes in a step: a loop that ends none shall not be one program.
_MOST_TIMES = 32
_WHOLE = frozenset({torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool})
# Views whose values are those in memory.
_STRIDED_STEPS = frozenset(
    "alias.default as_strided as_strided.default detach.default diagonal.default expand.default"
    " permute.default select.int slice.Tensor squeeze.default squeeze.dim squeeze.dims t.default"
    " transpose.int unfold.default unsqueeze.default view.default".split()
)


_put: Callable[[torch.Tensor, Value], None]
# What each line was answered.
_answers: dict[str, set[bytes]] = {}


def computed(value: Value) -> torch.Tensor | None:
    """A pending number as a CPU tensor of its own memory; None where the device has to tell it."""
    line = user_line()
    found = None if _is_full(line) else known([value])
    if found is None:
        return None
    number = found[0].clone()
    return number if allows(number.reshape(-1).view(torch.uint8).numpy().tobytes(), line) else None


def allows(answer: bytes, line: str) -> bool:
    """Whether a line has had few answers, this one among them, so that it may go on with it."""
    answers = _answers.setdefault(line, set())
    if len(answers) <= _MOST_ANSWERS:
        answers.add(answer)
    if len(_answers) > _LINES:
        _answers.clear()
    if len(answers) > _MOST_ANSWERS:
        return False
    metrics.count("ReadOnHost")
    return True


def allows_shapes(shapes: Sequence[Any], name: str) -> bool:
    """`allows`, for what decides the shapes of an operator's results.

    A line may have several in each step, as one that looks for the nodes of each degree.
    """
    line = f"{user_line()} {name}"
    if _asked.step != PROGRESS.step:
        _asked.step = PROGRESS.step
        _asked.times.clear()
    _asked.times[line] += 1
    times = _asked.times[line]
    return times <= _MOST_TIMES and allows(repr(shapes).encode(), f"{line} {times}")


def _is_full(line: str) -> bool:
    return len(_answers.get(line, ())) > _MOST_ANSWERS


def known(values: Sequence[Value]) -> list[torch.Tensor] | None:
    """What values of one device hold, as CPU tensors that nobody may write to; None where the
    device has to tell one."""
    trace = values[0].trace
    if not _may_look(trace):
        return None
    may_be = all(v.trace is trace and _may_be(root_of(v), trace) for v in values)
    if not may_be or not analysis.allows_execution():
        return None
    with trace.lock:
        slots = [None if _is_array(value) else trace.slot_of(value) for value in values]
        rows = _Rows(trace.tape)
        try:
            with torch.no_grad():
                found = [
                    _leaf(value.type, value.buffer) if slot is None else rows.of(slot)
                    for value, slot in zip(values, slots, strict=True)
                ]
        except Exception:
            # Also a wrong value, such as a division by zero, of which the device says nothing.
            return None
        _leave_out(trace, rows)
    return found


def _may_look(trace: Any) -> bool:
    """Whether a trace is this thread's, and nobody follows what is read of it."""
    if not isinstance(trace, DeviceTrace) or trace is not HERE.by_device.get(trace.device):
        return False
    # A function that is declared pure is asked what it reads.
    return watch.HERE.watch is None and trace.observer is None and HERE.symbolic is None


def parts(tensors: Sequence[Any]) -> list[torch.Tensor] | None:
    """What tensors of one device hold that are parts of known arrays, as CPU tensors that nobody
    may write to; None where one is none. No row is recorded for it."""
    if tensors[0].__class__ is not XlaTensor:
        return None
    trace = tensors[0].value.trace
    if not _may_look(trace) or trace.device.layout is not None:
        return None
    found = []
    for tensor in tensors:
        # Parameters are known in the first step alone, which then would be another than the rest.
        may_be = tensor.__class__ is XlaTensor and not tensor.requires_grad
        part = _part(tensor.value) if may_be and tensor.value.trace is trace else None
        if part is None:
            return None
        found.append(part)
    return found


def _part(value: Value) -> torch.Tensor | None:
    root, kind = root_of(value), value.type
    array = uploaded.known(root)
    if array is None or not root.type.is_plain:
        return None
    whole = torch.from_numpy(array.array)
    # Another dtype is what the device stores narrower, or a view of other bits.
    if whole.dtype != kind.dtype or not only_strides(value):
        return None
    return whole.reshape(-1).as_strided(kind.shape, kind.stride, kind.offset)


def only_strides(value: Value) -> bool:
    """Whether each step to a view changes the strides alone: the values are those in memory."""
    step: Value | None = value
    while isinstance(step, ViewValue):
        # Ours of `as_strided` has its layout in its name.
        name = step.step.name.removeprefix("aten.").partition("(")[0]
        if step.reader is not None or name not in _STRIDED_STEPS:
            return False
        step = step.parent
    return step is root_of(value)


def keep_number(number: torch.Tensor, value: Value) -> None:
    """Remember a whole number that was read: an action that a network chose, which its replay
    memory holds."""
    root, dtype = root_of(value), value.type.dtype
    # What is read through a view of other bits is another number.
    is_whole = dtype in _WHOLE and dtype == root.type.dtype
    # A view of one number may be of several, or of none.
    is_one = root.type.numel == value.type.numel == 1
    if is_whole and is_one and root.buffer is not None:
        # A copy: memory of a buffer that somebody refers to is not given to a program.
        array = number.to(dtype, copy=True).numpy().reshape(root.type.shape)
        uploaded.keep(array, root.buffer)


def _is_array(value: Value) -> bool:
    """Whether it needs no row, nor a place among what the next program is given."""
    return value.parent is None and value.buffer is not None


def put_with(put: Callable[[torch.Tensor, Value], None]) -> None:
    """From now on `put` gives a pending value a copy of a CPU tensor for its buffer."""
    global _put
    _put = put


def _leave_out(trace: DeviceTrace, rows: "_Rows") -> None:
    """Let what is pending have its values, where the host knows all that is alive of it.

    A step after which a mask was counted would begin with that row, and compile another program
    than the first.
    """
    tape = trace.tape
    if not rows.count or tape.writes or tape.collectives or len(tape.entries) > 2 * _MOST_ROWS:
        return
    live = live_values(tape)
    if sum(value.type.numel for value in live) > _MOST_LEFT_OUT:
        return
    try:
        with torch.no_grad():
            held = [rows.of(value.slot) for value in live]
    except Exception:
        return
    for value, tensor in zip(live, held, strict=True):
        _put(tensor, value)
    op_counts.count_rows(tape)
    trace.tape = Tape()
    trace.tape.since_s = tape.since_s
    trace.rounds.go_on(tape.epoch, trace.tape.epoch)


def _may_be(root: Value, trace: DeviceTrace) -> bool:
    """Whether it is worth a look; what a view reads is recorded for that."""
    if root.buffer is not None:
        return uploaded.known(root) is not None
    return root.epoch == trace.tape.epoch


class _Asked(threading.local):
    """How often each line asked for shapes, in the present step of this thread."""

    def __init__(self) -> None:
        self.step = -1
        self.times: Counter[str] = Counter()


_asked = _Asked()


class _Unknown(Exception):
    """What a value needs is not on the host, or would be rounded."""


class _Rows:
    """The rows of a tape, computed by CPU torch as they are needed.

    Attributes:
        found: what slots hold.
        count: of the rows that were computed.
    """

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self.count = 0
        self.found: dict[int, torch.Tensor] = {}

    def of(self, slot: int) -> torch.Tensor:
        """What a slot holds. Raises _Unknown."""
        if slot not in self.found:
            first = slot
            while self._tape.entries[first] is None:
                first -= 1
            entry = self._tape.entries[first]
            if isinstance(entry, TensorType):
                self.found[slot] = _leaf(entry, self._tape.buffers[slot])
            else:
                self._add(first, *entry)  # type: ignore[misc]
        return self.found[slot]

    def _add(self, first: int, plan: Plan, *operands: int) -> None:
        self.count += 1
        if self.count > _MOST_ROWS or not _is_computed(plan):
            raise _Unknown
        given = [self.of(operand) for operand in operands]
        results = torch_rows.compute(plan, given, self._tape.scalars.get(first, ()))
        self.found.update(enumerate(results, first))


def _leaf(type_: TensorType, buffer: Any) -> torch.Tensor:
    found = uploaded.of_buffer(buffer)
    if found is None:
        raise _Unknown
    # Of another dtype where the device stores it narrower, and computes so.
    tensor = torch.from_numpy(found.array).reshape(type_.shape)
    if tensor.dtype != type_.dtype:
        raise _Unknown
    return tensor


def _is_computed(plan: Plan) -> bool:
    """Whether CPU torch gives a row's results, to the last bit and soon enough."""
    is_short = all(type_ is not None and type_.numel <= _MOST_ELEMENTS for type_ in plan.types)
    return is_short and torch_rows.is_computed(plan) and torch_rows.is_exact(plan)
