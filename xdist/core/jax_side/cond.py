"""`torch.cond`: one row that holds both bodies."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import torch

from torch_xdist.core.devices.tensor import XlaTensor
from torch_xdist.core.jax_side.calls import (
    Body,
    Call,
    Flat,
    Tensors,
    backward_of,
    divided,
    key_of_run,
    of_smooth,
    smooth,
    with_gaps,
)
from torch_xdist.core.trace.values import Value
from torch_xdist.errors import CutError


class Cond(Call):
    """One of two functions of the same tensors, chosen by a tensor of one boolean."""

    name = "cond"

    def __init__(
        self,
        pred: Any,
        functions: Sequence[Flat],
        inputs: Tensors,
        random: list[Any] | None = None,
        memory: dict[Value, Any] | None = None,
    ) -> None:
        super().__init__([pred, *inputs], random, memory)
        self.functions = functions
        needs = [t.requires_grad and torch.is_grad_enabled() for t in self.inputs]
        self.trace([functools.partial(_without_first, f) for f in functions], self.inputs, needs)
        yes, no = self.bodies
        if yes.result_types != no.result_types:
            raise CutError(
                f"cond: true_fn returns {yes.result_types}, false_fn {no.result_types}; both must"
                " return tensors of the same shapes and dtypes"
            )

    def record(self) -> list[XlaTensor]:
        """One row that holds both."""
        roots = [self.memory[root] for root in self.written]
        outside = [self.outside(body) for body in self.bodies]
        parts = [self.inputs, self.random or [], *outside, roots]
        bodies = [self.lowered(body) for body in self.bodies]
        lengths = [range(len(part)) for part in parts]
        return self.row(functools.partial(_choose, bodies, lengths), parts, bodies)

    def gradients(self, results: Tensors, grads: Tensors) -> list[Any]:
        """The backward passes of the functions, of which the same one is chosen."""
        pred, *inputs = self.inputs
        again = torch.is_grad_enabled()
        backs = [backward_of(f, inputs, self.outer, again=again) for f in self.functions]
        given = of_smooth(grads, results)
        found = Cond(pred, backs, [*inputs, *given], self.random, self.memory).results()
        of_inputs, of_outer = divided(found, smooth(inputs), self.outer)
        return [None, *with_gaps(of_inputs, inputs), *of_outer]


def _without_first(function: Flat, first: Any, *tensors: Any) -> list[Any]:
    return function(*tensors)


def _choose(bodies: Sequence[Body], lengths: Sequence[range], *arguments: Any) -> list[Any]:
    numbers = [body.subgraph.scalars for body in bodies]
    given, drawn, of_yes, of_no, roots, *scalars = divided(arguments, *lengths, *numbers)

    def branch(body: Body, outside: Sequence[Any], numbers: Sequence[Any]) -> list[Any]:
        results, after = body.run(given, outside, roots, key_of_run(drawn), numbers)
        return [*results, *after]

    return jax.lax.cond(
        given[0].reshape(()) != 0,
        lambda: branch(bodies[0], of_yes, scalars[0]),
        lambda: branch(bodies[1], of_no, scalars[1]),
    )
