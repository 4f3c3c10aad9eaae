"""A loop that never ends a step: what its round recorded runs when the next one begins.

Scripts for other devices call no `sync`, and a loop that reads nothing either would become one
program of all its rounds. A round has begun where a place in the user's code has put a batch on the
device before, on the same way there, and a step's worth of rows came in between; without uploads,
where an optimizer has made its next step, or, once much is pending and without gradients, where a
module has ended that was called there before. A module, a gradient or an optimizer that uploads is
in the middle of a round. Rounds that were cut otherwise, by reading their loss, count as steps too.

Where another loop begins after an optimizer's step, an evaluation, what is pending of the first one
is a round: together they would be one program more, as long as both.

The first batch that a script uploads after a model ends what it made before: copies of parameters
that a mean of theirs begins with, or the model itself, made on the device. The first step's program
would have that too, and the whole step would be compiled again for the second one, which has not.
"""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
import torch.autograd.graph
import torch.nn.modules.module as torch_module
import torch.optim.optimizer as torch_optimizer

from torch_xdist import settings
from torch_xdist.core.run import analysis, cuts
from torch_xdist.core.run.device_trace import HERE, WHEN_LONG, DeviceTrace
from torch_xdist.core.trace.trace import Tape, rows_of
from torch_xdist.core.trace.values import Value
from torch_xdist.progress import PROGRESS

# Slots of a tape, below which a round waits for the next one: launching costs more than they do.
_LEAST = 16
# Slots of a round that is none of training, of a model that is being filled for example; those may
# all be of different programs, so this many slots of them are one.
_TINY, _OF_TINY = 6, 128
# What a trace remembers of places since the last step, and how many frames tell a place.
_PLACES, _FRAMES = 64, 32
# The frames of an upload that are this device's: here, its handler, the dispatcher.
_OURS = 3
# What a forward pass has, and hardly anything before it.
_FORWARD = frozenset(
    f"aten.{name}.default" for name in "linear mm addmm bmm convolution embedding".split()
)
# Whoever is called from a gradient, an optimizer or a module is in the middle of a round.
_TRAINING = frozenset(module.__file__ for module in (torch.autograd.graph, torch_optimizer))
_INSIDE = _TRAINING | {torch_module.__file__}
# After how many long tapes that were no loop's the next ones may be longer.
_MOST_VAIN = 2
# The slots of a backward pass that got long, after which to look again.
_UNTIL_NEXT_LOOK = 128
# The hook of modules that end, while there is one.
_watching: Any = None


class _Here(threading.local):
    """How many blocks this thread is in that end their step by themselves."""

    held = 0


_here = _Here()


def register() -> None:
    """Look at the steps of every optimizer; called once."""
    torch_optimizer.register_optimizer_step_post_hook(_after_step)
    WHEN_LONG.append(_watch_modules)


@contextmanager
def held() -> Iterator[None]:
    """No round begins inside the block."""
    hold()
    try:
        yield
    finally:
        release()


def hold() -> None:
    """From now on no round of this thread's begins, until `release` was called as often."""
    _here.held += 1


def release() -> None:
    """The end of what `hold` began."""
    _here.held -= 1


def after_upload(trace: DeviceTrace, tensor: torch.Tensor) -> None:
    """The user put a tensor on the device of this trace; cuts where that begins a round."""
    # A number is none of a batch's.
    if not tensor.dim() or not _is_possible():
        return
    rounds, tape = trace.rounds, trace.tape
    epoch, slots = rounds.stepped
    if epoch == tape.epoch and _is_round(tape, slots):
        # The optimizer's next step is the end of this round.
        return
    # Of the tensors of a batch that one line puts there, the first is looked at.
    frame = sys._getframe(_OURS)
    place = tape.epoch, len(tape.entries), id(frame.f_code), frame.f_lasti
    if place == rounds.looked:
        return
    rounds.looked = place
    way = _way_to(frame)
    if way is None:
        # Perhaps another model.
        rounds.has_begun = False
        return
    if not rounds.has_begun:
        _begin(trace, tape)
    if _is_other_loop(rounds, way) and epoch == tape.epoch and not tape.collectives:
        trace.cut(cuts.LOOP)
    _look(trace, way)


def _is_other_loop(rounds: cuts.Rounds, way: tuple[int, ...]) -> bool:
    """Whether a place puts batches there in a loop that began after another had gone round.

    An evaluation after the last step of an epoch would be one program with it.
    """
    if way not in rounds.places and len(rounds.places) < _PLACES:
        rounds.places[way] = not rounds.has_turned
    return not rounds.places.get(way, True)


def _begin(trace: DeviceTrace, tape: Tape) -> None:
    """Cut before the first batch after a model."""
    trace.rounds.has_begun = True
    if len(tape.entries) < _LEAST or tape.collectives:
        return
    if not any(row[0].name in _FORWARD for _, row in rows_of(tape.entries)):
        trace.cut(cuts.BEGIN)


def _after_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    first = next((p for group in optimizer.param_groups for p in group["params"]), None)
    value = getattr(first, "value", None)  # A device tensor's.
    trace = HERE.by_device.get(value.trace.device) if isinstance(value, Value) else None
    if trace is not None and trace.tape.entries and _is_possible():
        _look(trace, id(optimizer))
        trace.rounds.stepped = trace.tape.epoch, len(trace.tape.entries)


def _watch_modules(trace: DeviceTrace) -> None:
    """A tape has got long; modules say from now on when they end, where no gradient is wanted, or
    where gradients were computed and no optimizer is there to end a round."""
    global _watching
    rounds = trace.rounds
    rounds.differentiates = not rounds.has_stepped and _has_gradients(trace.tape)
    if torch.is_grad_enabled() and not rounds.differentiates:
        return
    if not _is_possible() or _is_compiling():
        return
    if _is_training():
        if not rounds.has_stepped:
            # Without an optimizer the round may be over then.
            trace.limit = min(trace.most, len(trace.tape.entries) + _UNTIL_NEXT_LOOK)
        return
    if rounds.vain == _MOST_VAIN:
        # Steps are as long as that, and end.
        rounds.patience, rounds.vain = 2 * len(trace.tape.entries), 0
        return
    rounds.vain += 1
    if _watching is None:
        _watching = torch_module.register_module_forward_hook(_after_module)


def _after_module(module: Any, args: Any, result: Any) -> None:
    """A module ended; cuts where it was called again, not by a module, and gradients are not wanted
    or were computed in between."""
    trace = HERE.trace
    if not isinstance(trace, DeviceTrace):
        _stop_watching()
        return
    differentiates = torch.is_grad_enabled()
    if differentiates and (not trace.rounds.differentiates or trace.rounds.has_stepped):
        _stop_watching()
        return
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename == torch_module.__file__:
        frame = frame.f_back
    way = _way_to(frame)
    if way is None or not _is_possible():
        return
    if differentiates and not _has_gradients(trace.tape):
        return
    if way not in trace.rounds.seen and len(trace.tape.entries) < trace.rounds.patience:
        # The loop is over.
        _stop_watching()
        return
    before = trace.cut_count
    _look(trace, way)
    if trace.cut_count > before:
        trace.rounds.vain = 0


def _has_gradients(tape: Tape) -> bool:
    return any("backward" in row[0].name for _, row in rows_of(tape.entries))


def _is_compiling() -> bool:
    """Whether this process has used torch.compile, which is made anew for such a hook."""
    # Others import it for what it has besides, as torch.func does.
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and bool(dynamo.counters.get("frames"))


def _is_training() -> bool:
    """Whether a backward pass or an optimizer records, which want no gradients either."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename in _TRAINING:
            return True
        frame = frame.f_back
    return False


def _stop_watching() -> None:
    global _watching
    # Several threads may find that it is over.
    hook, _watching = _watching, None
    if hook is not None:
        hook.remove()


def _is_possible() -> bool:
    return not _here.held and analysis.allows_execution() and settings.current().cut_loops


def _look(trace: DeviceTrace, key: Any) -> None:
    seen, tape = trace.rounds.seen, trace.tape
    mark = seen.get(key)
    if mark is None:
        if len(seen) < _PLACES:
            seen[key] = tape.epoch, len(tape.entries), 1
        return
    epoch, slots, times = mark
    is_uncut = epoch == tape.epoch
    if is_uncut and not _is_round(tape, slots, times):
        seen[key] = epoch, slots, times + 1
        return
    if is_uncut or tape.collectives:
        trace.cut(cuts.LOOP)
    seen.clear()
    trace.rounds.has_turned = True
    PROGRESS.step += 1
    seen[key] = trace.tape.epoch, len(trace.tape.entries), 1


def _is_round(tape: Tape, since: int, times: int = 1) -> bool:
    """Whether what a tape has from this slot on, of so many times, is a round, or enough of them.

    All ranks must run an exchange in the same round. So where one is pending, another one decides,
    and not how many rows this rank has besides: a loop of its own after the exchange is none.
    """
    if tape.collectives:
        return any(slot >= since for slot in tape.collectives)
    slots = len(tape.entries) - since
    return slots >= (_LEAST if slots >= _TINY * times else _OF_TINY)


def _way_to(frame: FrameType | None) -> tuple[int, ...] | None:
    """Where a frame and those that led to it are; None in the middle of a round."""
    found: list[int] = []
    for _ in range(_FRAMES):
        if frame is None:
            break
        code = frame.f_code
        if code.co_filename in _INSIDE:
            return None
        found += (id(code), frame.f_lasti)
        frame = frame.f_back
    return tuple(found)
