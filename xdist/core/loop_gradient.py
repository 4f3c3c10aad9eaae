"""The gradient of a loop of unknown length, for which JAX has none.

The way back needs the state before every turn. At most `_KEPT` of them are kept, at even distances;
those between are computed again from the one before, so memory has a bound whatever the length.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

State = tuple[jax.Array, ...]
# Loops of up to this many turns compute no state twice on the way back.
_KEPT = 64


def differentiable_loop(
    test: Callable[..., jax.Array], body: Callable[..., Sequence[jax.Array]]
) -> Callable[..., State]:
    """`run(start, of_test, of_body)`, which repeats `body` while `test` is true.

    Both take (state, what it reads, turn), turns counting from 0.
    """

    @jax.custom_vjp
    def run(start: State, of_test: State, of_body: State) -> State:
        return counted(start, of_test, of_body)[1]

    def counted(start: State, of_test: State, of_body: State) -> tuple[jax.Array, State]:
        return lax.while_loop(
            lambda turn: test(turn[1], of_test, turn[0]).reshape(()),
            lambda turn: (turn[0] + 1, tuple(body(turn[1], of_body, turn[0]))),
            (jnp.zeros((), jnp.int32), tuple(start)),
        )

    def forward(start: State, of_test: State, of_body: State) -> tuple[State, Any]:
        count, last = counted(start, of_test, of_body)
        return last, (count, start, of_test, of_body)

    def backward(kept: Any, grads: State) -> tuple[Any, ...]:
        count, start, of_test, of_body = kept
        found = _back(body, count, start, of_body, grads)
        return found[0], tuple(None for _ in of_test), found[1]

    run.defvjp(forward, backward)
    return run


def _back(body: Any, count: Any, start: State, of_body: State, grads: State) -> tuple[Any, Any]:
    """The gradients of the first state and of what the body reads; None for integers."""
    apart = jnp.maximum(1, -(-count // _KEPT))
    advance = lambda turn, state: tuple(body(state, of_body, turn))  # noqa: E731

    def keep(turn: Any, both: Any) -> Any:
        state, rows = both
        here = [r.at[turn // apart].set(s) for r, s in zip(rows, state)]
        rows = [jnp.where(turn % apart == 0, h, r) for h, r in zip(here, rows)]
        return advance(turn, state), rows

    room = [jnp.zeros((_KEPT, *s.shape), s.dtype) for s in start]
    _, rows = lax.fori_loop(0, count, keep, (tuple(start), room))

    def turn_back(done: Any, sums: Any) -> Any:
        turn = count - 1 - done
        kept = tuple(r[turn // apart] for r in rows)
        state = lax.fori_loop(turn - turn % apart, turn, advance, kept)
        by_state, by_read = _pulled(lambda *some: body(*some, turn), state, of_body, sums[0])
        return by_state, [a + b for a, b in zip(sums[1], by_read)]

    zeros = [jnp.zeros_like(x) for x in of_body if _is_smooth(x)]
    smooth = [g for g, s in zip(grads, start) if _is_smooth(s)]
    by_state, by_read = lax.fori_loop(0, count, turn_back, (smooth, zeros))
    return _with_gaps(by_state, start), _with_gaps(by_read, of_body)


def _pulled(body: Any, state: State, of_body: State, grads: Any) -> tuple[Any, Any]:
    """One turn's gradients by the smooth parts of its state and of what it reads."""

    def smooth_part(some: Any, read: Any) -> Any:
        results = body(_merged(some, state), _merged(read, of_body))
        return [r for r, s in zip(results, state) if _is_smooth(s)]

    parts = [[x for x in whole if _is_smooth(x)] for whole in (state, of_body)]
    return jax.vjp(smooth_part, *parts)[1](grads)


def _is_smooth(x: jax.Array) -> bool:
    return jnp.issubdtype(x.dtype, jnp.inexact)


def _merged(smooth: Sequence[Any], whole: State) -> State:
    parts = iter(smooth)
    return tuple(next(parts) if _is_smooth(x) else x for x in whole)


def _with_gaps(smooth: Sequence[Any], whole: State) -> tuple[Any, ...]:
    parts = iter(smooth)
    return tuple(next(parts) if _is_smooth(x) else None for x in whole)
