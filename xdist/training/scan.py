"""A loop along dim 0 whose body is traced once, its gradients too.

The body and torch's backward pass of it are recorded together and split (`core/jax_side/joint`):
the loop forward saves what the loop backward reads, so nothing is computed twice, unless a
partitioner wants it so. A body that reads tensors from outside which need gradients is a loop of
`core/jax_side/scan` instead, which computes it again on the way back.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch.utils import _pytree

from torch_xdist.core.devices.tensor import XlaTensor, wrap
from torch_xdist.core.jax_side import control_flow
from torch_xdist.core.jax_side.calls import check_state
from torch_xdist.core.jax_side.control_flow import Form, flattened
from torch_xdist.core.jax_side.differentiable import is_smooth
from torch_xdist.core.jax_side.joint import Joint, Split, record_joint, replay
from torch_xdist.core.jax_side.partition import Partition, split_by
from torch_xdist.core.record.symbolic_trace import TracedFunction
from torch_xdist.errors import ArgumentError, ImpureError
from torch_xdist.training.pytreeify import pytreeify

Carry = TypeVar("Carry")
X = TypeVar("X")
Y = TypeVar("Y")
# forward(carry, x), alias_input(partial activations, xs), backward(carry's gradients, (y's, kept))
Passes = tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]
# Of bodies that are said to be pure, by the body, then by the form of what it is called with.
_SCAN_COMPUTATION_CACHE: WeakKeyDictionary[Any, dict[Hashable, Passes]] = WeakKeyDictionary()


def scan(
    fn: Callable[[Carry, X], tuple[Carry, Y]],
    init: Carry,
    xs: X,
    partition_fn: Partition | None = None,
    is_fn_pure: bool = False,
) -> tuple[Carry, Y]:
    """`fn(carry, x) -> (carry, y)` along dim 0 of `xs`, as one loop of the program.

    Args:
        init, xs: nests of device tensors.
        partition_fn: what the backward pass computes again: a partitioner of `functorch.compile`,
            such as `min_cut_rematerialization_partition`. Default: nothing.
        is_fn_pure: trace `fn` once for each form of its arguments, not at each call.

    Returns the last carry, and the ys stacked along dim 0. Raises ImpureError where `fn` writes to
    a tensor from outside.
    """
    _check(fn, xs)
    try:
        passes = value_and_grad_partitioned(fn, init, xs, partition_fn, is_fn_pure)
    except _ReadsOutside:
        return control_flow.scan(fn, init, xs)
    forward, alias_input, backward = passes
    return Scan.apply(forward, alias_input, _Backward(fn, backward), init, xs)  # type: ignore[no-any-return]


def _check(fn: Any, xs: Any) -> None:
    if not callable(fn):
        raise ArgumentError(f"scan: `fn` is {fn!r}, which cannot be called; give a function")
    lengths = {len(x) for x in _pytree.tree_leaves(xs) if x is not None}
    if len(lengths) != 1:
        raise ArgumentError(
            f"scan: the leaves of `xs` have the lengths {sorted(lengths)} along dim 0; give one or"
            " more tensors of one length"
        )


class _ReadsOutside(ArgumentError):
    """A body reads tensors from outside which need gradients."""


def value_and_grad_partitioned(
    fn: Callable[..., Any],
    init: Any,
    xs: Any,
    partition_fn: Partition | None = None,
    is_fn_pure: bool = True,
) -> Passes:
    """The passes of a body for carries like `init` and rows of `xs`.

    Returns `forward(carry, x) -> (carry, (y, partial_activations))`,
    `alias_input(partial_activations, xs) -> activations`, which adds what is saved of `xs` itself,
    and `backward(grad_carry, (grad_y, activations)) -> (grad_carry, grad_x)`.
    """
    start, of_carry = flattened(init)
    rows, of_x = flattened(xs)
    key = partition_fn, of_carry, of_x, tuple(map(_type, start)), tuple(map(_type, rows))
    if is_fn_pure and key in _SCAN_COMPUTATION_CACHE.get(fn, {}):
        return _SCAN_COMPUTATION_CACHE[fn][key]
    body = _Body(fn, of_carry, of_x)
    # The state comes to need gradients where anything does.
    needs = [*map(is_smooth, start), *(x.requires_grad for x in rows)]
    like = [*start, *(x[0] for x in rows)]
    traced = TracedFunction("scan", body, like, needs, as_leaves=True)
    if traced.written:
        raise ImpureError(
            f"scan: `fn` writes to {len(traced.written)} tensor(s) from outside, for which the"
            " body has no FakeTensor in torch_xla either; carry them, or return the new values"
        )
    if traced.tensors:
        raise _ReadsOutside(
            f"value_and_grad_partitioned: `fn` reads {len(traced.tensors)} tensor(s) from outside"
            " which need gradients; pass them in `init` or `xs`, or call scan, which can"
        )
    check_state(traced, start, "scan: fn")
    joint = record_joint("scan", body, like, needs, leaves=True)
    passes = _Passes(joint, split_by(partition_fn, joint), body, start, rows)
    found = passes.forward, passes.alias_input, passes.backward
    if is_fn_pure:
        _SCAN_COMPUTATION_CACHE.setdefault(fn, {})[key] = found
    return found


def _type(tensor: torch.Tensor) -> Hashable:
    return tuple(tensor.shape), tensor.dtype, tensor.requires_grad


class _Body:
    """A body of nests as a function of flat tensors.

    Attributes: result: the forms of the carry and of the y it returned last.
    """

    def __init__(self, fn: Callable[..., Any], of_carry: Form, of_x: Form) -> None:
        self.fn = fn
        self.of_carry = of_carry
        self.of_x = of_x
        self.result: tuple[Form, Form] = of_carry, of_x

    def __call__(self, *tensors: XlaTensor) -> list[XlaTensor]:
        count = sum(self.of_carry.is_tensor)
        carry, y = self.fn(self.of_carry.filled(tensors[:count]), self.of_x.filled(tensors[count:]))
        (state, of_state), (found, of_y) = flattened(carry), flattened(y)
        self.result = of_state, of_y
        return [*state, *found]


class _Passes:
    """The forward and the backward pass of a body, of nests.

    Attributes:
        of_carry, of_x, of_state, of_y: the forms of what the body takes and of what it returns.
        states, rows: how many tensors the carry has, and the xs.
    """

    def __init__(
        self,
        joint: Joint,
        parts: Split,
        body: _Body,
        start: Sequence[torch.Tensor],
        rows: Sequence[torch.Tensor],
    ) -> None:
        self.joint = joint
        self.parts = parts
        self.of_carry, self.of_x = body.of_carry, body.of_x
        self.of_state, self.of_y = body.result
        self.states, self.rows = len(start), len(rows)
        self.is_smooth = [*map(is_smooth, start)]
        # Of the saved primals: those of the carry, and those that are rows of xs.
        count = self.states + self.rows
        self.of_state_kept = [i for i in parts.kept if i < self.states]
        self.of_rows_kept = [i - self.states for i in parts.kept if self.states <= i < count]
        self.outside_kept = [joint.outside[i - count] for i in parts.kept if i >= count]

    def forward(self, carry: Any, x: Any) -> Any:
        """(carry, (y, what is saved beside rows of xs))."""
        state, rows = flattened(carry)[0], flattened(x)[0]
        primals = [*state, *rows, *map(wrap, self.joint.outside)]
        found = replay(self.parts.forward, primals)
        count = len(self.joint.types)
        kept = (*(state[i] for i in self.of_state_kept), *found[count:])
        y = self.of_y.filled(found[self.states : count])
        return self.of_state.filled(found[: self.states]), (y, kept)

    def alias_input(self, partial_activations: Sequence[Any], xs: Any) -> tuple[Any, ...]:
        """All that is saved: what stands in xs is not copied."""
        rows, count = flattened(xs)[0], len(self.of_state_kept)
        aliased = [rows[i] for i in self.of_rows_kept]
        return (*partial_activations[:count], *aliased, *partial_activations[count:])

    def backward(self, carry: Any, x: Any) -> Any:
        """(the carry's gradients, the x's); None for what has none."""
        grad_y, activations = x
        grads = [*_pytree.tree_leaves(carry), *_pytree.tree_leaves(grad_y)]
        of_state = self._of_tensors(grads[: len(self.of_state.is_tensor)], self.of_state)
        of_y = self._of_tensors(grads[len(self.of_state.is_tensor) :], self.of_y)
        results = [*of_state, *of_y]
        given = [grad for grad, is_given in zip(results, self.joint.given) if is_given]
        count = len(self.of_state_kept) + len(self.of_rows_kept)
        operands = [
            *activations[:count],
            *map(wrap, self.outside_kept),
            *activations[count:],
            *given,
        ]
        found = replay(self.parts.backward, operands)
        places = self.joint.found
        before = [
            (torch.zeros_like(of_state[i]) if places[i] < 0 else found[places[i]])
            if self.is_smooth[i]
            else None
            for i in range(self.states)
        ]
        of_rows = places[self.states : self.states + self.rows]
        return (
            self.of_carry.filled(before),
            self.of_x.filled([None if place < 0 else found[place] for place in of_rows]),
        )

    @staticmethod
    def _of_tensors(leaves: Sequence[Any], form: Form) -> list[Any]:
        """Of one leaf per place of a form, those where it has tensors."""
        return [leaf for leaf, is_tensor in zip(leaves, form.is_tensor) if is_tensor]


class _Backward:
    """The backward pass of a body, and the body itself: gradients of gradients need that."""

    def __init__(self, fn: Callable[..., Any], function: Callable[..., Any]) -> None:
        self.fn = fn
        self.function = function


@pytreeify
class Scan(torch.autograd.Function):
    """The loop with its gradients: `Scan.apply(forward, alias_input, backward, init, xs)`."""

    @staticmethod
    def forward(ctx: Any, forward: Any, alias_input: Any, backward: Any, init: Any, xs: Any) -> Any:  # type: ignore[override]
        carry, (ys, partial) = control_flow.scan(forward, init, xs)
        saved = init, xs, tuple(alias_input(partial, xs))
        leaves, ctx._saved_form = flattened(saved)
        ctx.save_for_backward(*leaves)
        ctx._backward = backward
        return carry, ys

    @staticmethod
    def backward(ctx: Any, grad_carry: Any, grad_ys: Any) -> Any:  # type: ignore[override]
        init, xs, activations = ctx._saved_form.filled(ctx.saved_tensors)
        backward = ctx._backward
        if torch.is_grad_enabled() and isinstance(backward, _Backward):
            return None, None, None, *_again(backward.fn, init, xs, grad_carry, grad_ys)
        run = backward.function if isinstance(backward, _Backward) else backward
        grad_carry = _pytree.tree_map(_if_smooth, grad_carry)
        found = control_flow.scan(run, grad_carry, (grad_ys, activations), reverse=True)
        return None, None, None, *found


def _if_smooth(grad: Any) -> Any:
    return grad if grad is not None and is_smooth(grad) else None


def _again(fn: Any, init: Any, xs: Any, grad_carry: Any, grad_ys: Any) -> tuple[Any, Any]:
    """The gradients of a loop as what has gradients itself."""
    inputs, form = flattened((init, xs))
    wanted = [t for t in inputs if t.requires_grad]
    results = _pytree.tree_leaves(control_flow.scan(fn, init, xs))
    pairs = zip(results, _pytree.tree_leaves((grad_carry, grad_ys)), strict=True)
    outs, grads = zip(*((r, g) for r, g in pairs if r is not None and r.requires_grad))
    found = iter(torch.autograd.grad(outs, wanted, grads, create_graph=True, allow_unused=True))
    filled = form.filled([next(found) if t.requires_grad else None for t in inputs])
    return filled[0], filled[1]


def tree_flatten_none(pytree: Any) -> tuple[list[Any], Callable[[Sequence[Any]], Any]]:
    """The leaves of a nest without None, and what makes the nest of such leaves."""
    leaves, form = flattened(pytree)
    return leaves, form.filled
