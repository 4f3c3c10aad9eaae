"""`torch.cond`, `while_loop` and `scan` on device tensors, as JAX's own control flow.

A body is recorded on paper, once per call; what it reads from outside becomes an operand. The row
then holds both bodies, so no value is read from the device and nothing is cut.
"""

import importlib
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.utils import _pytree as pytree

from torch_xdist.core import program
from torch_xdist.core.from_jax import differentiable_row
from torch_xdist.core.loop_gradient import differentiable_loop
from torch_xdist.core.paper import Body, record_body
from torch_xdist.core.tensor import XlaTensor
from torch_xdist.errors import CutError

_torch_cond = torch.cond


def _has_ours(*values: Any) -> bool:
    return any(leaf.__class__ is XlaTensor for leaf in pytree.tree_leaves(values))


def _signature(body: Body) -> tuple[Any, ...]:
    """What makes two recorded bodies the same."""
    sheet = body.sheet
    text = "\n".join(program.describe(row) for row in sheet.rows)
    constants = tuple((slot, np.asarray(buffer).tobytes()) for slot, buffer in sheet.constants)
    slots = tuple(sheet.operand_slots), tuple(sheet.outs)
    return text, constants, slots, tuple(sheet.floats), tuple(sheet.ints)


def _tensors(operands: Any, where: str) -> list[XlaTensor]:
    leaves = pytree.tree_leaves(operands)
    for leaf in leaves:
        if leaf.__class__ is not XlaTensor:
            raise CutError(
                f"{where}: operand {leaf!r} is not an xla tensor; pass tensors of one device, "
                "and close over numbers"
            )
    return leaves


def _seeds(like: XlaTensor, *bodies: Body) -> list[XlaTensor]:
    """A number drawn for this call, where a body draws any; none otherwise."""
    if not any(body.is_random for body in bodies):
        return []
    return [torch.randint(2**31 - 1, (), device=like.device)]  # type: ignore[list-item]


def _key(seeds: Sequence[jax.Array], *places: Any) -> jax.Array:
    """The key of one run of a body: `places` tell the runs of one call apart."""
    key = jax.random.key(seeds[0] if seeds else 0)
    for place in places:
        key = jax.random.fold_in(key, place)
    return key


def cond(
    pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Any = ()
) -> Any:
    """`torch.cond`: one of two functions by a boolean tensor, without reading it.

    Raises CutError where the functions return different shapes or dtypes.
    """
    if not _has_ours(pred, operands) or pred.__class__ is not XlaTensor:
        return _torch_cond(pred, true_fn, false_fn, operands)
    inputs = _tensors(operands, "cond")
    kinds = [t.cell.kind for t in inputs]
    spec = pytree.tree_structure(operands)
    yes = record_body(lambda *xs: true_fn(*pytree.tree_unflatten(xs, spec)), kinds, pred)
    no = record_body(lambda *xs: false_fn(*pytree.tree_unflatten(xs, spec)), kinds, pred)
    if yes.out_kinds != no.out_kinds:
        raise CutError(
            f"cond: true_fn returns {yes.out_kinds}, false_fn {no.out_kinds}; both must return "
            "tensors of the same shapes and dtypes"
        )
    seeds = _seeds(pred, yes, no)
    parts = _lengths(inputs, seeds, yes.captured, no.captured)

    def choose(p: jax.Array, *arrays: jax.Array) -> Any:
        given, drawn, first, second = _divided(arrays, parts)
        return jax.lax.cond(
            p.reshape(()),
            lambda: yes.compute([*given, *first], _key(drawn)),
            lambda: no.compute([*given, *second], _key(drawn)),
        )

    key = (_signature(yes), _signature(no))
    operands_ = [pred, *inputs, *seeds, *yes.captured, *no.captured]
    return yes.rebuild(differentiable_row("cond", choose, operands_, key))


def while_loop(cond_fn: Callable[..., Any], body_fn: Callable[..., Any], carried: Any) -> Any:
    """Repeat `body_fn` while `cond_fn` is true; one program whatever the number of turns.

    Its gradient runs the turns again; what the condition reads has none.
    """
    inputs = _tensors(carried, "while_loop")
    kinds = [t.cell.kind for t in inputs]
    test = record_body(cond_fn, kinds, inputs[0])
    body = record_body(body_fn, kinds, inputs[0])
    if [(k.shape, k.dtype) for k in body.out_kinds] != [(k.shape, k.dtype) for k in kinds]:
        raise CutError(
            f"while_loop: body_fn returns {body.out_kinds} for {kinds}; shapes and dtypes of what "
            "is carried must not change"
        )
    seeds = _seeds(inputs[0], test, body)
    s = len(seeds)
    run = differentiable_loop(
        lambda xs, read, turn: test.compute([*xs, *read[s:]], _key(read[:s], turn, 0))[0],
        lambda xs, read, turn: body.compute([*xs, *read[s:]], _key(read[:s], turn, 1)),
    )
    parts = _lengths(inputs, [*seeds, *test.captured], [*seeds, *body.captured])
    key = (_signature(test), _signature(body))
    operands = [*inputs, *seeds, *test.captured, *seeds, *body.captured]

    def loop(*arrays: jax.Array) -> Any:
        return run(*_divided(arrays, parts))

    return body.rebuild(differentiable_row("while_loop", loop, operands, key))


def scan(
    combine_fn: Callable[..., Any], init: Any, xs: Any, *, dim: int = 0, reverse: bool = False
) -> tuple[Any, Any]:
    """Carry a state along a dimension: `combine_fn(carry, x) -> (carry, y)`, ys stacked.

    Args:
      dim: the dimension of every x that is walked along; the ys are stacked along dim 0.
    """
    start, rows = _tensors(init, "scan"), _tensors(xs, "scan")
    if dim:
        rows = [x.movedim(dim, 0) for x in rows]  # type: ignore[misc]
    ones: list[Any] = [x[0] for x in rows]
    kinds = [t.cell.kind for t in (*start, *ones)]
    spec_c, spec_x = pytree.tree_structure(init), pytree.tree_structure(xs)
    n = len(start)

    def step(*flat: Any) -> Any:
        return combine_fn(
            pytree.tree_unflatten(flat[:n], spec_c), pytree.tree_unflatten(flat[n:], spec_x)
        )

    body = record_body(step, kinds, start[0])

    seeds = _seeds(start[0], body)
    parts = _lengths(start, rows, seeds, body.captured)

    def run(*arrays: jax.Array) -> Any:
        first, along, drawn, captured = _divided(arrays, parts)

        def turn(carry: Any, x: Any) -> Any:
            results = body.compute([*carry, *x[1], *captured], _key(drawn, x[0]))
            return tuple(results[:n]), tuple(results[n:])

        places = jnp.arange(along[0].shape[0])
        carry, ys = jax.lax.scan(turn, first, (places, along), reverse=reverse)
        return [*carry, *ys]

    key = (_signature(body), reverse)
    operands = [*start, *rows, *seeds, *body.captured]
    return body.rebuild(differentiable_row("scan", run, operands, key))


def _lengths(*parts: Sequence[Any]) -> list[int]:
    return [len(part) for part in parts]


def _divided(arrays: Sequence[jax.Array], lengths: Sequence[int]) -> list[tuple[jax.Array, ...]]:
    """The operands of a row in the parts they were put together from."""
    given = iter(arrays)
    return [tuple(itertools.islice(given, length)) for length in lengths]


def register() -> None:
    """Serve the public names of torch where an operand is ours."""
    torch.cond = cond  # type: ignore[assignment]
    for name, ours in (("while_loop", while_loop), ("scan", scan)):
        module = importlib.import_module(f"torch._higher_order_ops.{name}")
        either = _either(ours, getattr(module, name))
        setattr(module, name, either)
        setattr(torch._higher_order_ops, name, either)


def _either(ours: Callable[..., Any], theirs: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        chosen = ours if _has_ours(args, kwargs) else theirs
        return chosen(*args, **kwargs)

    return call
