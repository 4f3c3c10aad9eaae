"""One call that is recorded as ever, and watched: what it read, wrote, made and returned.

Buffers and values are known by weak references here, and only until the call ends: whoever held one
would keep it from being donated, or make it live longer than the step.
"""

import gc
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils import _pytree as pytree

from torch_xdist.core.devices import closures
from torch_xdist.core.devices.tensor import XlaTensor, wrap
from torch_xdist.core.programs.launch import Launch, held_values
from torch_xdist.core.run.cuts import last_collective
from torch_xdist.core.run.device_trace import HERE, DeviceTrace
from torch_xdist.core.run.known_run import Known
from torch_xdist.core.run.tape_run import TapeRun
from torch_xdist.core.trace import row_lines, watch
from torch_xdist.core.trace.trace import Tape, rows_of, types_of
from torch_xdist.core.trace.user_frames import shortened, user_line
from torch_xdist.core.trace.values import root_of
from torch_xdist.replay import modes
from torch_xdist.replay.ends import Ends
from torch_xdist.replay.numbers import Numbers, Stream
from torch_xdist.replay.reach import Reach, Unfit, reach_of, steps_of
from torch_xdist.replay.script import ARGUMENT, GRADIENT, HELD, UPLOAD, Script, Source

Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class Recording:
    """One watched call.

    Args:
        called_before: modules and optimizers that the last call used.

    Attributes:
        why_not: why the call cannot be replayed, once that is known.
        called: modules and optimizers that this call used.
    """

    def __init__(self, trace: DeviceTrace, call: Call, called_before: Sequence[Any]) -> None:
        self.why_not: Unfit | None = None
        self._before: Before
        self._trace = trace
        self._call = call
        self._called_before = called_before
        self.called: list[Any] = []
        self._watch = watch.Watch()
        self._ends: Ends | None = None
        self._script: Script | None = None
        self._tape: Tape | None = None
        self._hooks: list[Any] = []
        # Who watched before: a function may call another one.
        self._outside: tuple[Any, Any] | None = None

    def _refuse(self, unfit: Unfit) -> None:
        self.why_not = self.why_not or unfit

    def _try(self, look: Callable[..., None], *arguments: Any) -> None:
        """Look at the call, if nothing speaks against a replay of it so far."""
        if self.why_not is not None:
            return
        try:
            look(*arguments)
        except Unfit as unfit:
            self._refuse(unfit)
        except Exception as error:
            # The step goes on: what cannot be looked at must not end the training.
            self._refuse(Unfit("error", f"it could not be looked at ({error!r}); please report it"))

    def __enter__(self) -> "Recording":
        """From here on modules, optimizers and uploads of this thread are noticed."""

        def noticed(thing: Any, *_: Any) -> None:
            if watch.HERE.watch is self._watch and all(thing is not one for one in self.called):
                self.called.append(thing)

        for register in (register_module_forward_pre_hook, register_optimizer_step_pre_hook):
            hook = register(noticed)
            modes.OWN_HOOKS.add(hook.id)
            self._hooks.append(hook)
        return self

    def begin(self) -> None:
        """The function is about to be called; nothing is pending."""
        self._outside = watch.HERE.watch, self._trace.observer
        watch.HERE.watch = self._watch
        self._trace.observer = self._observe
        row_lines.begin(self._trace.tape)
        self._try(self._begin)

    def _begin(self) -> None:
        self._before = Before(reach_of(*self._call, self._called_before), self._trace)

    def __exit__(self, *_: Any) -> None:
        if self._outside is not None:
            watch.HERE.watch, self._trace.observer = self._outside
        for hook in self._hooks:
            hook.remove()
            modes.OWN_HOOKS.discard(hook.id)

    def returned(self, call: Callable[[], Any]) -> Any:
        """Call the function; returns what it returns, detached. The step has not ended yet.

        Notes who holds what is pending, as nobody can tell afterwards. Whoever passes an argument
        may hold it until the call is over (Python does where dynamo looks at frames), so the result
        is none.
        """
        leaves, form = pytree.tree_flatten(call())
        for index, leaf in enumerate(leaves):
            if leaf.__class__ is XlaTensor and (leaf.requires_grad or self._is_made(leaf)):
                leaves[index] = wrap(leaf.value)
        leaf = None
        self._try(self._look, leaves, form)
        return pytree.tree_unflatten(leaves, form)

    def _is_made(self, tensor: XlaTensor) -> bool:
        """Whether a tensor is none that was there before."""
        return self.why_not is None and self._before.source_of(tensor) is None

    def _look(self, leaves: list[Any], form: Any) -> None:
        before, trace = self._before, self._trace
        before.check_end()
        for other in HERE.by_device.values():
            if other is not trace and other.tape.entries:
                raise Unfit("devices", f"it computes on {other.device} and on {trace.device}")
        self._tape = trace.tape
        ends = Ends(before, trace, leaves, form)
        if ends.unknown():
            # Cycles that nobody reaches hold values until the collector comes.
            gc.collect()
            ends = Ends(before, trace, leaves, form)
        lines = row_lines.lines_of(trace.tape.entries) or {}
        ends.check(lines)
        self._ends = ends
        self._held_leaves = _held_leaves(trace.tape)

    def _observe(self, run: TapeRun, launch: Launch) -> None:
        """A tape of the call is about to run; after its end that is the one."""
        self._try(self._write_down, run, launch)

    def _write_down(self, run: TapeRun, launch: Launch) -> None:
        if self._ends is None or run.tape is not self._tape or launch.tape is not run.tape:
            raise Unfit(
                "cut",
                f"it does not run in one piece: {shortened(user_line())} needs a value, or begins a"
                " slice at another place, in its middle",
            )
        self._script = self._written(run, launch)

    def _written(self, run: TapeRun, launch: Launch) -> Script:
        before, tape, ends = self._before, run.tape, self._ends
        assert run.program is not None and ends is not None
        lines = row_lines.lines_of(tape.entries) or {}
        leaves, uploads = self._leaves(launch, lines)
        stream = self._trace.random
        numbers = Numbers(tape, lines, before.stream, stream)
        reach = before.reach
        numbers.feed_updates(self._watch.updates, reach)
        parameter_of = {
            slot: before.held[source.number]
            for slot, source in zip(launch.leaves, leaves)
            if source.kind == HELD
        }
        numbers.feed_rates(tape, parameter_of, reach)
        places = {slot: place for place, slot in enumerate(launch.outs)}
        ends.place({id(value): places.get(value.slot, -1) for value in run.live})
        self._check_donated(leaves, launch.mask, ends)
        return Script(
            known=Known(run.program, len(tape.collectives), last_collective(tape)),
            held=before.held,
            parameters=before.parameters,
            leaves=leaves,
            mask=[*launch.mask],
            uploads=uploads,
            writes=ends.writes,
            versions=before.versions_that_rose(),
            gradients=ends.gradients,
            form=ends.form,
            returned=ends.returned,
            made=ends.made,
            types=ends.types,
            numbers=numbers,
            counters=before.counters_that_rose(),
            modes=before.modes,
        )

    def _leaves(self, launch: Launch, lines: Mapping[int, str]) -> tuple[list[Source], list[Any]]:
        """Where each leaf comes from, and what was put on the device for some."""
        before, tape = self._before, launch.tape
        uploaded = {id(upload.buffer()): upload for upload in self._watch.uploads}
        found: list[Source] = []
        arrays: list[Any] = []
        for slot in launch.leaves:
            buffer = tape.buffers[slot]
            source = before.source_of_buffer(buffer)
            if source is None:
                upload = uploaded.get(id(buffer))
                if upload is None or upload.array is None or slot in self._held_leaves:
                    raise _unknown_leaf(tape, slot, lines, upload)
                source = Source(UPLOAD, len(arrays))
                arrays.append(upload.array)
            found.append(source)
        return found, arrays

    @staticmethod
    def _check_donated(leaves: list[Source], mask: tuple[bool, ...], ends: Ends) -> None:
        """What is given away is written, or nobody has it afterwards."""
        written = {write.source for write in ends.writes}
        for source, give in zip(leaves, mask):
            if not give or source.kind == UPLOAD or source in written:
                continue
            if source.kind == GRADIENT and ends.gradients[source.number].outcome != "kept":
                continue
            raise Unfit("memory", "a tensor gets other memory in place of its own (.data =, set_)")

    def script(self) -> tuple[Script, Reach]:
        """What the call did, and what it depended on; after the step has ended.

        Raises Unfit where it cannot be replayed.
        """
        if self.why_not is None and self._script is None:
            self._refuse(Unfit("nothing", "it records nothing"))
        if self.why_not is not None:
            raise self.why_not
        assert self._script is not None
        reach = reach_of(*self._call, self.called)
        if [*reach.held] != [*self._before.reach.held]:
            raise Unfit("state", "it makes tensors that it finds again, as first steps do")
        return self._script, reach


class Before:
    """What there was before a call, by weak references."""

    def __init__(self, reach: Reach, trace: DeviceTrace) -> None:
        self.reach = reach
        self.held = [tensor for tensor, _ in reach.held.values()]
        self.parameters = [t for t in self.held if t.requires_grad and t.is_leaf]
        self.stream = Stream.of(trace.random)
        self.modes = (*modes.modes(trace.device),)
        self._counts = {
            id(tensor): (tensor, tensor._version, tensor.item())
            for tensor, _ in reach.counts.values()
            if not tensor.dim()
        }
        self._versions = [tensor._version for tensor in self.held]
        self._waiting = closures.waiting_closures()
        self._roots: dict[int, tuple[weakref.ref[Any], Source]] = {}
        self._buffers: dict[int, tuple[weakref.ref[Any], Source]] = {}
        # What is in the memory of each, as the count of writes tells, and its source.
        self._memory: list[tuple[weakref.ref[Any], int, Source]] = []
        for index, tensor in enumerate(self.held):
            self._enter(tensor, Source(HELD, index))
        for index, argument in enumerate(reach.arguments):
            self._enter(argument.tensor, Source(ARGUMENT, index))
        self.had_gradient: list[weakref.ref[Any] | None] = []
        self.gradient_forms: list[tuple[Any, ...]] = []
        for index, parameter in enumerate(self.parameters):
            self._enter_gradient(parameter, index)

    def _enter_gradient(self, parameter: XlaTensor, index: int) -> None:
        gradient = parameter.grad
        if gradient is not None and gradient.__class__ is not XlaTensor:
            raise Unfit("gradient", f"a gradient is a {type(gradient).__name__}")
        form: tuple[Any, ...] = ()
        if gradient is not None:
            self._enter(gradient, Source(GRADIENT, index))  # type: ignore[arg-type]
            form = steps_of(gradient.value)  # type: ignore[attr-defined]
        self.gradient_forms.append(form)
        self.had_gradient.append(None if gradient is None else weakref.ref(gradient))

    def _enter(self, tensor: XlaTensor, source: Source) -> None:
        root = root_of(tensor.value)
        known = self._roots.get(id(root))
        if known is not None:
            if known[1].kind != source.kind or source.kind == GRADIENT:
                raise Unfit("alias", "two of its tensors share memory, an argument is one of them")
            return
        self._roots[id(root)] = weakref.ref(root), source
        buffer = root.buffer
        held = None if buffer is None else weakref.ref(buffer)
        self._memory.append((weakref.ref(root), root.generation, source))
        if held is not None:
            # Two values may hold one buffer; then none is donated.
            self._buffers.setdefault(id(buffer), (held, source))

    def source_of_root(self, root: Any) -> Source | None:
        """Of which tensor that was there a value is the memory."""
        found = self._roots.get(id(root))
        return found[1] if found is not None and found[0]() is root else None

    def source_of(self, tensor: XlaTensor) -> Source | None:
        """Into the memory of which tensor that was there a tensor looks."""
        return self.source_of_root(root_of(tensor.value))

    def source_of_buffer(self, buffer: Any) -> Source | None:
        """Which tensor that was there had this buffer."""
        found = self._buffers.get(id(buffer))
        return found[1] if found is not None and found[0]() is buffer else None

    def memory(self) -> list[tuple[Any, Source]]:
        """The memory of what was there and still is."""
        found = [(root(), source) for root, _, source in self._memory]
        return [(root, source) for root, source in found if root is not None]

    def tensor_of(self, source: Source) -> Any:
        """The tensor that is found so now."""
        if source.kind == HELD:
            return self.held[source.number]
        if source.kind == ARGUMENT:
            return self.reach.arguments[source.number].tensor
        return self.parameters[source.number].grad

    def check_end(self) -> None:
        """Raise Unfit where the function did what a replay would not do."""
        if closures.waiting_closures() != self._waiting:
            raise Unfit("closure", "it adds a step closure; add that outside of the function")
        for root, generation, _ in self._memory:
            value = root()
            # Written, and not by a row: it has the buffer of another one.
            if value is not None and value.buffer is not None and value.generation != generation:
                raise Unfit(
                    "memory", "it gives one tensor the memory of another (copy_ of a whole tensor)"
                )
        for tensor, version, count in self._counts.values():
            if tensor._version != version and tensor.item() != count + 1:
                raise Unfit("host", "it changes a tensor of an optimizer's state on the CPU")

    def counters_that_rose(self) -> list[torch.Tensor]:
        """CPU tensors of optimizers' states that are one more than before."""
        return [t for t, _, count in self._counts.values() if t.item() == count + 1]

    def versions_that_rose(self) -> list[int]:
        """The places of held tensors that torch counts as written."""
        pairs = enumerate(zip(self.held, self._versions))
        return [index for index, (tensor, version) in pairs if tensor._version != version]


def _held_leaves(tape: Tape) -> set[int]:
    """The slots of leaves whose buffer something else has than the tape, and values that are dead.

    What `.to` puts on the device is written into a value that the tape lists.
    """
    held = {*map(id, held_values(tape))}
    dead = Counter(id(value.buffer) for value in tape.values if id(value) not in held)
    stand_in = {0: object()}
    least = sys.getrefcount(stand_in[0])
    buffers = tape.buffers
    return {
        slot for slot in buffers if sys.getrefcount(buffers[slot]) > least + dead[id(buffers[slot])]
    }


def _unknown_leaf(
    tape: Tape, slot: int, lines: Mapping[int, str], upload: watch.Upload | None
) -> Unfit:
    type_ = types_of(tape.entries)[slot]
    if upload is not None:
        what = "keeps it" if upload.array is not None else "it is large"
        return Unfit(
            "upload",
            f"{shortened(upload.where)} puts a tensor {type_!r} on the device, and {what}; make it"
            " an argument that is on the device",
        )
    rows = [(at, row) for at, row in rows_of(tape.entries) if at in lines]
    users = [at for at, row in rows if slot in row[1:]]
    line = f" at {shortened(lines[users[0]])}" if users else ""
    return Unfit(
        "unknown",
        f"it reads a tensor {type_!r}{line} that is found neither in its arguments, nor in modules,"
        " optimizers and variables that it names; make it an argument",
    )
