"""`scan`: a body along the first dim of tensors, which carries a state."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch

from torch_xdist.core.devices.tensor import XlaTensor
from torch_xdist.core.jax_side.calls import (
    Body,
    Call,
    Flat,
    Tensors,
    added,
    backward_of,
    check_state,
    divided,
    key_of_run,
    let_be,
    of_smooth,
    smooth,
    with_gaps,
)
from torch_xdist.core.trace.values import Value


class Scan(Call):
    """One loop over the rows of tensors.

    Its results are the last state, the ys, and where gradients are needed the states before each
    turn, written roots included.

    Args:
        function: (*state, *x) -> (*state, *y).
        start: the first state.
        rows: what is walked along.
    """

    name = "scan"

    def __init__(
        self,
        function: Flat,
        start: Tensors,
        rows: Tensors,
        reverse: bool,
        random: list[Any] | None = None,
        memory: dict[Value, Any] | None = None,
    ) -> None:
        super().__init__([*start, *rows], random, memory)
        self.function = function
        self.reverse = reverse
        self.states = len(start)
        ones = [*start, *(x[0] for x in rows)]
        self.trace_carrying([function], ones, self.inputs, self.states)
        check_state(self.bodies[0], start, "scan: combine_fn")
        self.ys = len(self.bodies[0].result_types) - self.states
        self.keeps = self.needs_grad

    def record(self) -> list[XlaTensor]:
        """One row that holds the loop."""
        body = self.lowered(self.bodies[0])
        start, rows = self.inputs[: self.states], self.inputs[self.states :]
        roots = [self.memory[root] for root in self.written]
        parts = [start, rows, self.random or [], self.outside(self.bodies[0]), roots]
        lengths = [range(len(part)) for part in parts]
        run = functools.partial(_run, body, lengths, self.keeps, self.reverse)
        return self.row(run, parts, [body], (self.keeps, self.reverse))

    def gradients(self, results: Tensors, grads: Tensors) -> list[Any]:
        """A scan the other way, through the states before each turn."""
        start, rows = self.inputs[: self.states], self.inputs[self.states :]
        shape = start, range(self.ys), start, self.written
        last, ys, before, roots = divided(results, *shape)
        of_last, of_ys, of_before, _ = divided(grads, *shape)
        of_last, of_ys = of_smooth(of_last, last), of_smooth(of_ys, ys)  # type: ignore[assignment]
        of_before = of_smooth(of_before, before)  # type: ignore[assignment]
        zeros = [torch.zeros_like(t) for t in self.outer]
        back = backward_of(self.function, self.inputs, self.outer, again=torch.is_grad_enabled())

        def turn(*tensors: Any) -> list[Any]:
            parts = of_last, zeros, start, roots, rows, of_ys, of_before
            of_state, sums, state, now, x, of_y, of_kept = divided(tensors, *parts)
            let_be(self.written, now)
            found = back(*state, *x, *of_state, *of_y)
            of_state, of_x, of_outer = divided(found, of_last, smooth(rows), zeros)
            return [*added(of_state, of_kept), *added(sums, of_outer), *of_x]

        along = [*before, *roots, *rows, *of_ys, *of_before]
        call = Scan(turn, [*of_last, *zeros], along, not self.reverse, self.random, self.memory)
        of_start, sums, of_rows = divided(call.results(), of_last, zeros, smooth(rows))
        return [*with_gaps(of_start, start), *with_gaps(of_rows, rows), *sums]


def _run(
    body: Body, lengths: Sequence[range], keeps: bool, reverse: bool, *arguments: Any
) -> list[Any]:
    first, along, drawn, outside, roots, scalars = divided(
        arguments, *lengths, body.subgraph.scalars
    )
    states = len(first)

    def turn(state: Any, x: Any) -> Any:
        key = key_of_run(drawn, x[0])
        found, after = body.run([*state[:states], *x[1]], outside, state[states:], key, scalars)
        kept = state if keeps else ()
        return (*found[:states], *after), (*found[states:], *kept)

    places = jnp.arange(along[0].shape[0])
    last, ys = jax.lax.scan(turn, (*first, *roots), (places, along), reverse=reverse)
    return [*last[:states], *ys, *last[states:]]
