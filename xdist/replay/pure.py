"""Functions that were declared pure: which calls are replayed, which recorded, and what is told.

A function's first calls are recorded, and watched. One that could be replayed is a variant, and
once another call has confirmed it, calls of it are replayed. What a function cannot be replayed
for, and what differs from every variant where one was expected, is told once for each cause.
"""

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any, Protocol

from torch.utils import _pytree as pytree

from torch_xdist import metrics, settings, world
from torch_xdist.core.devices.tensor import XlaTensor, wrap
from torch_xdist.core.run.device_trace import HERE, DeviceTrace
from torch_xdist.core.trace.user_frames import shortened, user_line
from torch_xdist.core.trace.values import Device
from torch_xdist.replay import modes
from torch_xdist.replay.reach import Unfit
from torch_xdist.replay.recording import Recording
from torch_xdist.replay.variant import Broken, Ready, Variant

# How many ways of a function are known at a time.
_VARIANTS = 16
# Recordings that are watched though nothing came of the last ones; then one of 2, 4, 8, ... is.
_PATIENCE = 8
# Refusals for the same reason before it is told: first steps make states.
_TOLD_AT = 3
_OF_OBJECTS = ("object", "optimizer", "tensor")


class Step(Protocol):
    """How a call is recorded: a `training.compiled_step.CompiledStep`."""

    name: str

    def begin(self) -> DeviceTrace: ...
    def replayed(self, replay: Callable[[DeviceTrace], None]) -> None: ...
    def __exit__(self, *failure: Any) -> None: ...


class _OfDevice:
    """What is known of a function in one thread on one device.

    Attributes:
        variants: the one that was used last comes first.
        called: modules and optimizers that the last watched call used.
        idle: how many calls were recorded since one was replayed.
        refusals: how often in a row calls were refused for the reason `refused`.
    """

    def __init__(self) -> None:
        self.variants: list[Variant] = []
        self.called: list[Any] = []
        self.idle = 0
        self.refusals = 0
        self.refused = ""

    @property
    def is_watched(self) -> bool:
        """Whether it is worth a look what the next call does."""
        return self.idle < _PATIENCE or not self.idle & (self.idle - 1)


class _Here(threading.local):
    def __init__(self) -> None:
        self.of_devices: dict[Device, _OfDevice] = {}


class Pure:
    """A function that was declared pure.

    Args:
        function: what to call.
        step: how a call of it is recorded.
    """

    def __init__(self, function: Callable[..., Any], step: Step) -> None:
        self._function = function
        self._step = step
        self._here = _Here()
        self._told: set[str] = set()

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The function's result, by a replay or by a recording."""
        step = self._step
        if HERE.symbolic is not None:
            return self._function(*args, **kwargs)
        trace = step.begin()
        known = self._here.of_devices.get(trace.device)
        if known is None:
            known = self._here.of_devices[trace.device] = _OfDevice()
        try:
            found, ready = self._find(known, trace.device, args, kwargs)
        except BaseException:
            step.__exit__(*sys.exc_info())
            raise
        if found is None or ready is None:
            return self._recorded(known, trace, found, args, kwargs)
        return self._replayed(known, trace, found, ready)

    def _replayed(
        self, known: _OfDevice, trace: DeviceTrace, variant: Variant, ready: Ready
    ) -> Any:
        results: list[Any] = []
        known.idle = known.refusals = 0
        if known.variants[0] is not variant:
            known.variants.remove(variant)
            known.variants.insert(0, variant)
        self._step.replayed(lambda _: results.append(variant.replay(trace, ready)))
        return results[0]

    def _find(
        self, known: _OfDevice, device: Device, args: Any, kwargs: Any
    ) -> tuple[Variant | None, Ready | None]:
        """The variant that a call is of, and what its replay takes; None where it is recorded."""
        why = modes.refusal(device)
        if why:
            self._refuse(known, Unfit("mode", why))
            return None, None
        now = modes.modes(device)
        broken: Broken | None = None
        for variant in [*known.variants]:
            if not variant.script.known.program.is_kept:
                known.variants.remove(variant)
                continue
            if variant.script.modes != now or not variant.guard.holds(args, kwargs):
                continue
            if not variant.is_confirmed:
                return variant, None
            ready = variant.gather(args, kwargs)
            if isinstance(ready, Ready):
                return variant, ready
            broken = ready
        self._tell_broken(known, broken, now, args, kwargs)
        return None, None

    def _recorded(
        self,
        known: _OfDevice,
        trace: DeviceTrace,
        expected: Variant | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        known.idle += 1
        if not known.is_watched or modes.refusal(trace.device):
            if known.refused:
                metrics.count(f"ReplayRefused.{known.refused}")
            return self._called(lambda: _detached(self._function(*args, **kwargs)))
        recording = Recording(trace, (self._function, args, kwargs), known.called)
        with recording:
            recording.begin()
            function = functools.partial(self._function, *args, **kwargs)
            result = self._called(lambda: recording.returned(function))
        known.called = recording.called
        try:
            script, reach = recording.script()
            if expected is not None and expected.script.is_like(script):
                known.variants.remove(expected)
                expected.script.check_constants(script)
                self._check_unchanged(expected, args, kwargs)
                expected.is_confirmed = True
                known.refusals = 0
                known.variants.insert(0, expected)
            else:
                if expected is not None:
                    known.variants.remove(expected)
                known.variants.insert(0, Variant(script, reach, trace))
                del known.variants[_VARIANTS:]
        except Unfit as unfit:
            self._refuse(known, unfit)
        return result

    def _called(self, call: Callable[[], Any]) -> Any:
        try:
            result = call()
        except BaseException:
            self._step.__exit__(*sys.exc_info())
            raise
        self._step.__exit__(None, None, None)
        return result

    def _check_unchanged(self, variant: Variant, args: Any, kwargs: Any) -> None:
        """Raise Unfit where a call changes what it depends on: a replay would not."""
        found = variant.guard.broken(args, kwargs)
        if found is not None:
            check, now = found
            raise Unfit("changes", f"the function changes {check.where}: {check.was}, then {now}")

    def _refuse(self, known: _OfDevice, unfit: Unfit) -> None:
        """A call cannot be replayed; it is told when it comes again."""
        metrics.count(f"ReplayRefused.{unfit.kind}")
        known.refusals = known.refusals + 1 if known.refused == unfit.kind else 1
        known.refused = unfit.kind
        if known.refusals >= _TOLD_AT:
            self._tell(
                f"refused {unfit.kind}",
                f"cannot be replayed, and is recorded at each call: {unfit}",
            )

    def _tell_broken(
        self, known: _OfDevice, broken: Broken | None, now: Any, args: Any, kwargs: Any
    ) -> None:
        """Say what differs from the variant that was used last."""
        if not known.variants:
            return
        variant = known.variants[0]
        if broken is None and variant.script.modes != now:
            pairs = zip(modes.NAMES, variant.script.modes, now)
            broken = next(
                Broken("mode", name, str(was), str(is_)) for name, was, is_ in pairs if was != is_
            )
        if broken is None:
            found = variant.guard.broken(args, kwargs)
            if found is None:
                return
            check, is_ = found
            broken = Broken(check.kind, check.where, check.was, is_)
            is_replaced = check.kind in _OF_OBJECTS and not check.holds.startswith(("a[", "k["))
            if is_replaced:
                # It does not come back, and would be kept alive.
                known.variants.remove(variant)
        if not variant.is_confirmed:
            text = f"{broken.where} is another one at each call: it was {broken.was}, then"
            self._refuse(known, Unfit("changes", f"{text} {broken.now}"))
            return
        metrics.count(f"ReplayBroken.{broken.kind}")
        differs = f"{broken.where} was {broken.was}, is {broken.now}"
        if broken.kind in _OF_OBJECTS:
            differs = f"{broken.where} is another one than it was ({broken.now})"
        self._tell(f"broken {broken.kind} {broken.where}", f"recorded again: {differs}")

    def _tell(self, cause: str, text: str) -> None:
        if cause in self._told:
            return
        self._told.add(cause)
        if world.current().local_rank or not settings.current().explain_recompiles:
            return
        where = shortened(user_line())
        print(
            f"torch_xdist: {where}: torch_xla.compile({self._step.name}, pure=True) {text}",
            file=sys.stderr,
            flush=True,
        )


def _detached(result: Any) -> Any:
    leaves, form = pytree.tree_flatten(result)
    if not any(leaf.__class__ is XlaTensor and leaf.requires_grad for leaf in leaves):
        return result
    for index, leaf in enumerate(leaves):
        if leaf.__class__ is XlaTensor and leaf.requires_grad:
            leaves[index] = wrap(leaf.value)
    return pytree.tree_unflatten(leaves, form)
