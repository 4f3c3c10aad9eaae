"""A traced function as rows: one of its forward pass, one of its backward pass."""

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

import jax
import torch

from torch_xdist.core.devices import rng
from torch_xdist.core.devices.tensor import XlaTensor, wrap
from torch_xdist.core.jax_side.differentiable import differentiable_row
from torch_xdist.core.jax_side.joint import Joint, split
from torch_xdist.core.record.jax_ops import record_jax
from torch_xdist.core.record.symbolic_trace import Subgraph
from torch_xdist.core.run.device_trace import trace_here


class PureRows:
    """What a call of a traced function records.

    Attributes:
        spec, results: the form of what the function returned; for each of its leaves whether it is
            a tensor, and the leaf where it is none.
        is_random: whether it draws random numbers.
    """

    def __init__(
        self,
        name: str,
        joint: Joint,
        spec: Any,
        results: Sequence[tuple[bool, Any]],
        device: torch.device,
    ) -> None:
        self.name = name
        self.joint = joint
        self.spec = spec
        self.results = results
        self.device = device
        self.parts = split(joint)
        self.is_random = joint.subgraph.is_random
        # Of a function without a seed: its numbers are those of the time it was traced.
        self.seed = rng.get_rng_state(device) if self.is_random else 0

    def __call__(
        self, tensors: Sequence[XlaTensor], seed: Any, at_backward: Callable[[], Any]
    ) -> list[XlaTensor]:
        """The function's flat results, with gradients.

        Args:
            seed: an int or a tensor; None: the function's own.
            at_backward: called when the backward pass is recorded.
        """
        seeds = self._seeds(seed)
        if any(self.joint.given) and torch.is_grad_enabled():
            passed = self, seeds, at_backward, *tensors, *self.joint.outer
            return list(_Pure.apply(*passed))
        return self.forward(tensors, seeds)[: len(self.joint.types)]

    def _seeds(self, seed: Any) -> list[Any]:
        """The seed as an operand, where the function has use for one."""
        if seed is None or not self.is_random:
            return []
        if isinstance(seed, torch.Tensor):
            return [seed.to(self.device)]
        return [torch.tensor(int(seed), device=self.device)]

    def primals(self, tensors: Sequence[Any]) -> list[Any]:
        """The inputs, and what is read from outside as it is now."""
        return [*tensors, *map(wrap, self.joint.outside)]

    def forward(self, tensors: Sequence[Any], seeds: Sequence[Any]) -> list[XlaTensor]:
        """The results, then what is saved."""
        return self._row("", self.parts.forward, self.primals(tensors), seeds)

    def backward(self, operands: Sequence[Any], seeds: Sequence[Any]) -> list[XlaTensor]:
        """The gradients that there are."""
        return self._row("_backward", self.parts.backward, operands, seeds)

    def _row(
        self, suffix: str, graph: Subgraph, operands: Sequence[Any], seeds: Sequence[Any]
    ) -> list[XlaTensor]:
        run, key = self._lowering(graph, len(seeds))
        return record_jax(f"pure.{self.name}{suffix}", run, [*operands, *seeds], key)

    def _lowering(self, graph: Subgraph, seeds: int) -> tuple[Callable[..., Any], Hashable]:
        seed = None if seeds else self.seed
        return partial(_compute, graph, seed), (graph.key, graph.scalars, seed)

    def differentiable_backward(
        self, primals: Sequence[Any], grads: Sequence[Any], seeds: Sequence[Any]
    ) -> list[XlaTensor]:
        """The gradients as functions of all they depend on, so that they have gradients."""
        whole = self.joint.subgraph
        outs = whole.outs[len(self.joint.types) :]
        graph = Subgraph(whole.entries, whole.operands, outs, (), whole.floats, whole.ints)
        run, key = self._lowering(graph, len(seeds))
        name = f"pure.{self.name}_backward"
        return differentiable_row(name, run, [*primals, *grads, *seeds], key)


def _compute(graph: Subgraph, seed: int | None, *arrays: Any) -> list[Any]:
    """Without a seed the last operand is one."""
    *operands, last = arrays
    if seed is not None:
        operands, last = [*arrays], seed
    return graph.compute(operands, jax.random.key(last))


class _Pure(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: PureRows, seeds: Any, at_backward: Any, *tensors: Any) -> Any:
        joint = rows.joint
        found = rows.forward(tensors[: joint.inputs], seeds)
        results, others = found[: len(joint.types)], found[len(joint.types) :]
        ctx.mark_non_differentiable(*(r for r, given in zip(results, joint.given) if not given))
        # What is outside may be written before the backward pass comes.
        outside = [wrap(trace_here(v.trace.device).snapshot(v)) for v in joint.outside]
        ctx.save_for_backward(*tensors[: joint.inputs], *outside, *others)
        ctx.rows, ctx.seeds, ctx.at_backward = rows, seeds, at_backward
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        rows: PureRows = ctx.rows
        joint, saved = rows.joint, ctx.saved_tensors
        given = [grad for grad, is_given in zip(grads, joint.given) if is_given]
        count = len(joint.primals)
        ctx.at_backward()
        if torch.is_grad_enabled():
            found = rows.differentiable_backward(saved[:count], given, ctx.seeds)
        else:
            operands = [*(saved[i] for i in rows.parts.kept), *saved[count:], *given]
            found = rows.backward(operands, ctx.seeds)
        return None, None, None, *(None if place < 0 else found[place] for place in joint.found)
