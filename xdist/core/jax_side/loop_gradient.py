"""The way back through a loop of unknown length, for which JAX has none.

The way back needs the state before every turn. At most `_KEPT` of them are kept, at even distances;
those between are computed again from the one before, so memory has a bound whatever the length.
The way back is itself made of such loops where it is differentiated, so gradients have any order.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

State = tuple[jax.Array, ...]
Types = Sequence[jax.ShapeDtypeStruct]
# `body(state, of_body, turn)`: the state after a turn.
Body = Callable[..., Sequence[jax.Array]]
# `repeat(count, body, state, of_body)`: the state after `count` turns.
Repeat = Callable[[jax.Array, Body, State, State], State]
# Loops of up to this many turns compute no state twice on the way back.
_KEPT = 64
# The same where the way back is differentiated, which keeps several of all these.
_KEPT_TWICE = 8


# `pull(state, of_body, grads, turn)`: the gradients by the smooth parts of the state before a turn,
# then those by what the body reads, given those of the state after it.
Pull = Callable[..., tuple[State, State]]


def loop(test: Callable[..., jax.Array], body: Body) -> Callable[..., tuple[jax.Array, State]]:
    """`run(start, of_test, of_body)`, which repeats `body` while `test` is true.

    Both take (state, what it reads, turn), turns counting from 0. Returns the number of turns and
    the state after them.
    """

    def run(start: State, of_test: State, of_body: State) -> tuple[jax.Array, State]:
        return lax.while_loop(
            lambda turn: test(turn[1], of_test, turn[0]).reshape(()),
            lambda turn: (turn[0] + 1, tuple(body(turn[1], of_body, turn[0]))),
            (jnp.zeros((), jnp.int32), tuple(start)),
        )

    return run


def way_back(body: Body, pull: Pull, states: int, sums: Types) -> Callable[..., State]:
    """`back(count, *start, *of_body, *grads)`: gradients by the smooth of start, then the sums.

    Args:
        states: how many arrays the state has.
        sums: the types of the gradients by what the body reads, as `pull` gives them.
    """

    def computed(repeat: Repeat, kept: int, count: jax.Array, arrays: State) -> State:
        whole = len(arrays) - sum(map(is_smooth, arrays[:states]))
        parts = arrays[:states], arrays[states:whole], arrays[whole:]
        return _back(repeat, kept, body, pull, sums, count, *parts)

    @jax.custom_vjp
    def back(count: jax.Array, *arrays: jax.Array) -> State:
        return computed(_repeat, _KEPT, count, arrays)

    def forward(count: jax.Array, *arrays: jax.Array) -> Any:
        return back(count, *arrays), (count, arrays)

    def backward(kept: Any, grads: State) -> tuple[Any, ...]:
        count, arrays = kept
        smooth = tuple(x for x in arrays if is_smooth(x))

        def again(*some: jax.Array) -> State:
            return computed(_differentiable, _KEPT_TWICE, count, _merged(some, arrays))

        return None, *_with_gaps(jax.vjp(again, *smooth)[1](tuple(grads)), arrays)

    back.defvjp(forward, backward)
    return back


def _differentiable_loop(test: Callable[..., jax.Array], body: Body) -> Callable[..., State]:
    """`loop`, with the gradients that JAX makes of its body."""

    @jax.custom_vjp
    def counted(start: State, of_test: State, of_body: State) -> tuple[jax.Array, State]:
        return loop(test, body)(start, of_test, of_body)

    def forward(start: State, of_test: State, of_body: State) -> Any:
        # Not the bare while_loop: a second derivative comes through here.
        count, last = counted(start, of_test, of_body)
        return (count, last), (count, start, of_test, of_body)

    def backward(kept: Any, grads: Any) -> tuple[Any, ...]:
        count, start, of_test, of_body = kept
        sums = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in of_body if is_smooth(x)]
        back = way_back(body, functools.partial(_pulled, body), len(start), sums)
        found = back(count, *start, *of_body, *_smooth(grads[1], start))
        gaps = _with_gaps(found, (*start, *of_body))
        return gaps[: len(start)], tuple(None for _ in of_test), gaps[len(start) :]

    counted.defvjp(forward, backward)
    return lambda start, of_test, of_body: counted(tuple(start), of_test, of_body)[1]


def _repeat(count: jax.Array, body: Body, state: State, of_body: State) -> State:
    return lax.fori_loop(0, count, lambda turn, s: tuple(body(s, of_body, turn)), tuple(state))


def _differentiable(count: jax.Array, body: Body, state: State, of_body: State) -> State:
    run = _differentiable_loop(lambda state, of_test, turn: turn < of_test[0], body)
    return run(tuple(state), (count,), tuple(of_body))


def _back(
    repeat: Repeat,
    kept: int,
    body: Body,
    pull: Pull,
    sums: Types,
    count: jax.Array,
    start: State,
    of_body: State,
    grads: State,
) -> State:
    apart = jnp.maximum(1, -(-count // kept))
    n, k = len(start), len(of_body)

    def keep(both: State, read: State, turn: Any) -> State:
        state, rows, (apart, *of_body) = both[:n], both[n:], read
        here = [r.at[turn // apart].set(s) for r, s in zip(rows, state)]
        rows = tuple(jnp.where(turn % apart == 0, h, r) for h, r in zip(here, rows))
        return *body(state, of_body, turn), *rows

    room = [jnp.zeros((kept, *s.shape), s.dtype) for s in start]
    rows = repeat(count, keep, (*start, *room), (apart, *of_body))[n:]

    def advance(state: State, read: State, turn: Any) -> State:
        return tuple(body(state, read[1:], read[0] + turn))

    def turn_back(found: State, read: State, done: Any) -> State:
        count, apart = read[:2]
        of_body, rows = read[2 : 2 + k], read[2 + k :]
        turn = count - 1 - done
        state = tuple(r[turn // apart] for r in rows)
        first = turn - turn % apart
        state = repeat(turn - first, advance, state, (first, *of_body))
        of_state, of_read = pull(state, of_body, found[: len(grads)], turn)
        return *of_state, *(a + b for a, b in zip(found[len(grads) :], of_read, strict=True))

    zeros = [jnp.zeros(x.shape, x.dtype) for x in sums]
    return repeat(count, turn_back, (*grads, *zeros), (count, apart, *of_body, *rows))


def _pulled(body: Body, state: State, of_body: State, grads: State, turn: Any) -> Any:
    """One turn's gradients by the smooth parts of its state and of what it reads, by JAX."""

    def smooth_part(some: Any, read: Any) -> Any:
        results = body(_merged(some, state), _merged(read, of_body), turn)
        return _smooth(results, state)

    return jax.vjp(smooth_part, _smooth(state, state), _smooth(of_body, of_body))[1](grads)


def is_smooth(x: jax.Array) -> bool:
    return bool(jnp.issubdtype(x.dtype, jnp.inexact))


def _smooth(arrays: Sequence[Any], like: Sequence[jax.Array]) -> State:
    """Those of the arrays where `like` is smooth."""
    return tuple(itertools.compress(arrays, map(is_smooth, like)))


def _merged(smooth: Sequence[Any], whole: State) -> State:
    parts = iter(smooth)
    return tuple(next(parts) if is_smooth(x) else x for x in whole)


def _with_gaps(smooth: Sequence[Any], whole: State) -> tuple[Any, ...]:
    parts = iter(smooth)
    return tuple(next(parts) if is_smooth(x) else None for x in whole)
