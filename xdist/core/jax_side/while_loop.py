"""`while_loop`: a body that is repeated while a test of its state is true."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import torch

from torch_xdist.core.devices.tensor import XlaTensor, wrap
from torch_xdist.core.jax_side.calls import (
    Body,
    Call,
    Flat,
    Tensors,
    backward_of,
    check_state,
    divided,
    key_of_run,
    let_be,
    of_smooth,
    smooth,
    with_gaps,
)
from torch_xdist.core.jax_side.differentiable import differentiable_row
from torch_xdist.core.jax_side.loop_gradient import loop, way_back
from torch_xdist.core.record.symbolic_trace import Subgraph, TracedFunction
from torch_xdist.dtypes import to_jax
from torch_xdist.errors import CutError

# Tell the test and the body of one call apart, where they draw random numbers.
_TEST, _BODY = 0, 1


class While(Call):
    """One loop of as many turns as its test says.

    Its results are the last state and the number of turns. The states before the turns, which a
    gradient needs, are computed again on the way back, from some that are kept.
    """

    name = "while_loop"

    def __init__(self, test: Flat, function: Flat, carried: Tensors) -> None:
        super().__init__(carried)
        self.function = function
        self.trace_carrying([test, function], carried, carried, len(carried))
        if self.bodies[0].written:
            raise CutError(
                f"while_loop: cond_fn writes to {len(self.bodies[0].written)} tensor(s) from"
                " outside; write in body_fn"
            )
        found = self.bodies[1].result_types
        if len(found) != len(carried):
            raise CutError(
                f"while_loop: body_fn returns {len(found)} tensors for {len(carried)} that are"
                " carried; return one for each"
            )
        check_state(self.bodies[1], carried, "while_loop: body_fn")

    def record(self) -> list[XlaTensor]:
        """One row that holds the loop."""
        bodies = [self.lowered(body) for body in self.bodies]
        roots = [self.memory[root] for root in self.written]
        outside = [self.outside(body) for body in self.bodies]
        parts = [self.inputs, self.random or [], *outside, roots]
        lengths = [range(len(part)) for part in parts]
        return self.row(functools.partial(_run, bodies, lengths), parts, bodies)

    def results(self) -> list[Any]:
        """The last state."""
        return super().results()[: len(self.inputs)]

    def gradients(self, results: Tensors, grads: Tensors) -> list[Any]:
        """One row that goes back turn by turn."""
        state = [*self.inputs, *(self.memory[root] for root in self.written)]
        passive = smooth(state[len(self.inputs) :])
        given = of_smooth(grads[: len(self.inputs)], results)
        pull = self._pull(state, given)
        bodies = [self.lowered(self.bodies[1]), self.lowered(pull)]
        parts = [
            self.random or [],
            self.outside(self.bodies[1]),
            _as_tensors(bodies[0].subgraph, state[0]),
            self.outside(pull),
            _as_tensors(bodies[1].subgraph, state[0]),
        ]
        form = _Form(
            len(state), len(given), len(passive), tuple(map(len, parts)), self._types_of_outer()
        )
        operands = [results[len(self.inputs)], *state, *(t for part in parts for t in part)]
        operands += [*given, *(torch.zeros_like(t) for t in passive)]
        found = differentiable_row(
            "while_loop_backward",
            functools.partial(_run_back, bodies, form),
            operands,
            (tuple(body.key for body in bodies), form),
        )
        return [*with_gaps(found[: len(given)], self.inputs), *found[len(given) :]]

    def _pull(self, state: Tensors, given: Tensors) -> TracedFunction:
        """One turn back: (*state, *gradients after it) -> (*gradients before it, *the outer's)."""
        back = backward_of(self.function, self.inputs, self.outer, again=False)

        def turn(*tensors: Any) -> list[Any]:
            before, roots, of_after = divided(tensors, self.inputs, self.written, given)
            let_be(self.written, roots)
            return back(*before, *of_after)

        like = [*state, *given]
        pull = TracedFunction(self.name, turn, like, [False] * len(like))
        for value in pull.captured:
            self.memory.setdefault(value, wrap(value))
        return pull

    def _types_of_outer(self) -> tuple[tuple[tuple[int, ...], torch.dtype], ...]:
        return tuple((tuple(t.shape), t.dtype) for t in self.outer)


@dataclass(frozen=True)
class _Form:
    """How many of each a way back has; the types of the gradients that are summed up."""

    states: int
    smooth: int
    passive: int
    parts: tuple[int, ...]
    outer: tuple[tuple[tuple[int, ...], torch.dtype], ...]


def _run(bodies: Sequence[Body], lengths: Sequence[range], *arguments: Any) -> list[Any]:
    numbers = [body.subgraph.scalars for body in bodies]
    start, drawn, of_test, of_body, roots, *scalars = divided(arguments, *lengths, *numbers)
    states = len(start)
    test, body = _turn(bodies[0], states, _TEST), _turn(bodies[1], states, _BODY)
    run = loop(lambda state, read, turn: test(state, read, turn)[0], body)
    reads = (drawn, of_test, scalars[0]), (drawn, of_body, scalars[1])
    count, last = run((*start, *roots), *reads)
    return [*last[:states], count, *last[states:]]


def _turn(body: Body, states: int, place: int) -> Callable[..., list[Any]]:
    """`run(state, (drawn, outside, scalars), turn)`: the body's results, then the written roots."""

    def run(state: Sequence[Any], read: Any, turn: Any) -> list[Any]:
        drawn, outside, scalars = read
        key = key_of_run(drawn, turn, place)
        found, after = body.run(state[:states], outside, state[states:], key, scalars)
        return [*found, *after]

    return run


def _run_back(bodies: Sequence[Body], form: _Form, count: Any, *arrays: Any) -> list[Any]:
    roots = len(bodies[0].writes) and form.states - bodies[0].results
    body = _turn(bodies[0], form.states - roots, _BODY)
    pulled = _turn(bodies[1], form.states + form.smooth, _BODY)

    def reads(arrays: Sequence[Any]) -> tuple[Any, Any]:
        drawn, of_body, numbers, of_pull, pull_numbers = divided(arrays, *map(range, form.parts))
        return (drawn, of_body, _each(numbers)), (drawn, of_pull, _each(pull_numbers))

    def advance(state: Any, arrays: Any, turn: Any) -> list[Any]:
        return body(state, reads(arrays)[0], turn)

    def pull(state: Any, arrays: Any, of_after: Any, turn: Any) -> Any:
        own, passive = of_after[: form.smooth], of_after[form.smooth :]
        found = pulled((*state, *own), reads(arrays)[1], turn)[: bodies[1].results]
        return (*found[: form.smooth], *passive), tuple(found[form.smooth :])

    sums = [jax.ShapeDtypeStruct(shape, to_jax(dtype)) for shape, dtype in form.outer]
    found = way_back(advance, pull, form.states, sums)(count, *arrays)
    return [*found[: form.smooth], *found[form.smooth + form.passive :]]


def _as_tensors(subgraph: Subgraph, like: Any) -> list[Any]:
    """The scalars of a function as operands: its floats, then its ints, where it has any."""
    kinds = (subgraph.floats, torch.float64), (subgraph.ints, torch.int64)
    return [torch.tensor(n, dtype=dtype).to(like.device) for n, dtype in kinds if n]


def _each(tensors: Sequence[Any]) -> list[Any]:
    return [x for tensor in tensors for x in tensor]
