"""What calls of control flow have in common: bodies that are recorded, rows with gradients.

A body is recorded once per call as a function of flat tensors. What it reads from outside becomes
an operand of the row; what it writes outside is carried, and written when the row was recorded.

The gradient of a call is a program of tensors again: the bodies and torch's own backward passes of
them, in the same control flow. So it has every order, and what is detached, hooked or an
`autograd.Function` of the user's counts. The bodies run again there.
"""

import itertools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import torch

from torch_xdist.core.alias.views import write
from torch_xdist.core.devices.tensor import XlaTensor, wrap
from torch_xdist.core.jax_side.differentiable import is_smooth
from torch_xdist.core.record.jax_ops import record_jax
from torch_xdist.core.record.symbolic_trace import Subgraph, TracedFunction
from torch_xdist.core.run.device_trace import trace_here
from torch_xdist.core.trace.values import Value
from torch_xdist.errors import CutError

Tensors = Sequence[Any]
# A function of flat tensors that returns flat tensors.
Flat = Callable[..., list[Any]]


class Call:
    """One call of control flow.

    Args:
        inputs: flat operands.
        random: of the call whose gradient this is: the tensor its random numbers come from.
        memory: of the same call: what its bodies read from outside, as it was then.

    Attributes:
        bodies: the recorded functions.
        outer: the tensors from outside that need gradients.
        written: the roots from outside that the bodies write.
    """

    name: str

    def __init__(
        self,
        inputs: Tensors,
        random: list[Any] | None = None,
        memory: dict[Value, Any] | None = None,
    ) -> None:
        self.inputs = list(inputs)
        self.memory = dict(memory or {})
        self.random = random
        # A gradient runs the bodies again, which must not write again.
        self.writes = memory is None
        self.bodies: list[TracedFunction] = []
        self.outer: list[Any] = []
        self.written: list[Value] = []

    def trace(self, functions: Sequence[Flat], like: Tensors, needs: Sequence[bool]) -> None:
        """Record the functions, of tensors like these, which need gradients where it says so."""
        self.bodies = [TracedFunction(self.name, f, like, needs) for f in functions]
        self.outer = list({id(t): t for body in self.bodies for t in body.tensors}.values())
        self.written = list(dict.fromkeys(v for body in self.bodies for v in body.written))
        if self.random is None:
            is_random = any(body.subgraph.is_random for body in self.bodies)
            self.random = [torch.randint(2**31 - 1, (), device=like[0].device)] if is_random else []
        for value in [*(v for body in self.bodies for v in body.captured), *self.written]:
            if value not in self.memory:
                self.memory[value] = self._remembered(value)

    def trace_carrying(
        self, functions: Sequence[Flat], like: Tensors, inputs: Tensors, states: int
    ) -> None:
        """`trace` of functions whose first operands are a state that goes from turn to turn."""
        needs = [t.requires_grad and torch.is_grad_enabled() for t in inputs]
        smooth = [is_smooth(t) for t in inputs[:states]] + needs[states:]
        self.trace(functions, like, smooth if any(needs) else needs)
        if self.needs_grad and not any(needs):
            # What the bodies read from outside needs gradients, so the state comes to need them.
            self.trace(functions, like, smooth)

    def _remembered(self, value: Value) -> Any:
        """A tensor that stays what the value is now; the user's own where it needs gradients."""
        for tensor in self.outer:
            if tensor.value is value:
                return tensor
        return wrap(trace_here(value.trace.device).snapshot(value))

    def outside(self, body: TracedFunction) -> list[Any]:
        """What a body reads from outside, as tensors."""
        return [self.memory[value] for value in body.captured]

    def lowered(self, body: TracedFunction) -> "Body":
        """A body as its row keeps it."""
        place = {root: i for i, root in enumerate(self.written)}
        return Body(
            body.subgraph,
            len(body.result_types),
            tuple(place.get(value, -1) for value in body.captured),
            tuple(place[root] for root in body.written),
        )

    @property
    def needs_grad(self) -> bool:
        """Whether anything that it computes needs gradients."""
        return torch.is_grad_enabled() and any(
            need for body in self.bodies for need in body.needs_grad
        )

    def row(
        self,
        lowering: Callable[..., Any],
        parts: Sequence[Tensors],
        bodies: Sequence["Body"],
        static: Hashable = (),
    ) -> list[XlaTensor]:
        """Record the row of the call: its operands are the parts, then the bodies' scalars.

        `lowering` must hold no tensors, which would live as long as the program.
        """
        key = tuple(body.key for body in bodies), tuple(map(len, parts)), static
        scalars = [number for body in bodies for number in body.subgraph.scalars]
        tensors = [tensor for part in parts for tensor in part]
        return record_jax(self.name, lowering, tensors, key, scalars=scalars)

    def record(self) -> list[XlaTensor]:
        """Record the row; returns its results, then what the written roots are after it."""
        raise NotImplementedError

    def gradients(self, results: Tensors, grads: Tensors) -> list[Any]:
        """The gradients of the inputs, then of the outer tensors; None for those that have none."""
        raise NotImplementedError

    def results(self) -> list[Any]:
        """The results of the call with their gradients; writes what the bodies write."""
        if self.needs_grad:
            found = list(_Differentiable.apply(self, *self.inputs, *self.outer))
        else:
            found = list(self.record())
        count = len(found) - len(self.written)
        if self.writes:
            for root, new in zip(self.written, found[count:]):
                write(root, new.value)
        return found[:count]


class _Differentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: Call, *tensors: Any) -> tuple[Any, ...]:
        results = call.record()
        ctx.call, ctx.own = call, len(results) - len(call.written)
        flags = [i < ctx.own and is_smooth(r) for i, r in enumerate(results)]
        ctx.mark_non_differentiable(*itertools.compress(results, [not f for f in flags]))
        ctx.save_for_backward(*tensors, *results[: ctx.own])
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        call: Call = ctx.call
        inputs, _, results = divided(ctx.saved_tensors, call.inputs, call.outer, range(ctx.own))
        call.inputs = list(inputs)
        return None, *call.gradients(results, grads[: ctx.own])


@dataclass(frozen=True, slots=True)
class Body:
    """A recorded body as a row keeps it: no tensors, no values.

    Attributes:
        results: how many of the subgraph's results are its own; written roots follow them.
        reads: for each operand from outside, its place among the written roots, or -1.
        writes: the place of each root that it writes.
    """

    subgraph: Subgraph
    results: int
    reads: tuple[int, ...]
    writes: tuple[int, ...]

    @property
    def key(self) -> Hashable:
        """What it computes."""
        return self.subgraph.key, self.results, self.reads, self.writes

    def run(
        self,
        operands: Sequence[Any],
        outside: Sequence[Any],
        roots: Sequence[Any],
        key: Any,
        scalars: Sequence[Any],
    ) -> tuple[list[Any], list[Any]]:
        """Its results, and what the written roots are afterwards.

        Args:
            outside: what it read from outside when it was recorded.
            roots: what the written roots are now.
        """
        now = [x if place < 0 else roots[place] for place, x in zip(self.reads, outside)]
        found = self.subgraph.compute([*operands, *now], key, list(scalars))
        after = list(roots)
        for place, value in zip(self.writes, found[self.results :]):
            after[place] = value
        return found[: self.results], after


def backward_of(function: Flat, like: Tensors, outer: Tensors, *, again: bool) -> Flat:
    """`back(*inputs, *grads)`: gradients of the smooth inputs, then of the outer tensors.

    `grads` are those of the smooth results of the function. With `again` the gradients have
    gradients.
    """

    def back(*tensors: Any) -> list[Any]:
        inputs = [
            t if not is_smooth(t) or t.requires_grad else t.detach().requires_grad_()
            for t in tensors[: len(like)]
        ]
        # A copy, because a leaf could not be written in place.
        results = smooth(function(*[t.clone() if t.requires_grad else t for t in inputs]))
        pairs = [(r, g) for r, g in zip(results, tensors[len(like) :], strict=True)]
        pairs = [(r, g) for r, g in pairs if r.requires_grad]
        wanted = [*smooth(inputs), *outer]
        found: Sequence[Any] = [None] * len(wanted)
        if pairs and wanted:
            outs, grads = zip(*pairs)
            found = torch.autograd.grad(outs, wanted, grads, create_graph=again, allow_unused=True)
        return [torch.zeros_like(w) if g is None else g for g, w in zip(found, wanted)]

    return back


def let_be(roots: Sequence[Value], tensors: Tensors) -> None:
    """Within the function that is being recorded, let roots from outside hold these."""
    for root, tensor in zip(roots, tensors):
        write(root, tensor.value)


def check_state(body: TracedFunction, start: Tensors, where: str) -> None:
    """Raise CutError where a body returns another state than it takes."""
    found = body.result_types[: len(start)]
    if [(t.shape, t.dtype) for t in found] != [(tuple(t.shape), t.dtype) for t in start]:
        raise CutError(
            f"{where} returns {found} for {[t.value.type for t in start]}; shapes and dtypes of"
            " what is carried must not change"
        )


def key_of_run(seeds: Sequence[jax.Array], *places: Any) -> jax.Array:
    """The key of one run of a body: `places` tell the runs of one call apart."""
    key = jax.random.key(seeds[0] if seeds else 0)
    for place in places:
        key = jax.random.fold_in(key, place)
    return key


def divided(items: Sequence[Any], *parts: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Items in parts that are as long as these."""
    given = iter(items)
    return [tuple(itertools.islice(given, len(part))) for part in parts]


def smooth(tensors: Tensors) -> list[Any]:
    """Those of the tensors that may have gradients."""
    return [t for t in tensors if is_smooth(t)]


def of_smooth(grads: Tensors, like: Tensors) -> list[Any]:
    """The gradients of those of the tensors that may have any."""
    return [g for g, t in zip(grads, like) if is_smooth(t)]


def with_gaps(grads: Tensors, like: Tensors) -> list[Any]:
    """The gradients of the smooth ones among tensors, None for the others."""
    found = iter(grads)
    return [next(found) if is_smooth(t) else None for t in like]


def added(these: Tensors, those: Tensors) -> list[Any]:
    """The sum of each pair."""
    return [a + b for a, b in zip(these, those, strict=True)]
