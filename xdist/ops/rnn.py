"""Recurrent layers as one loop over time per layer and direction.

torch makes a recurrent layer of a dozen operators per time step; here a step is one turn of a
`lax.scan`. The products with the input are taken before the loop for all times at once, and so is
the gradient of the recurrent weight after the backward loop, so a loop holds one small matmul and
elementwise work. Called by `core/composites/recurrent.py`; arrays are time-major, [t, b, ...].

Inside the loops features come before the batch, [t, features, b]: the recurrent weight is then the
left side of its product, which a CPU takes as it lies, and else copies into another order at every
step (1024 x 256 by 256 x 16: 0.14 ms, the other way round 0.21). Each step keeps what its gradient
needs, so the way back has no other product and no sigmoid.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

# The state of a layer: its output first; an LSTM has its cell beside it. Each is [h, b].
State = tuple[jax.Array, ...]


@dataclass(frozen=True, slots=True)
class Cell:
    """One step of a layer and its gradient; `g` gates make the share of the input [g h, b].

    Attributes:
        forward: from a state, the input's and the state's share of the gates to the next state and
            what is kept, [k h, b].
        backward: from the gradient of the next state, the state, the next one and what is kept to
            the gradient of the state beside its product, and that of the input's share.
        of_state: from the gradient of the input's share and what is kept to that of the state's.
    """

    forward: Callable[[State, jax.Array, jax.Array], tuple[State, jax.Array]]
    backward: Callable[[State, State, State, jax.Array], tuple[State, jax.Array]]
    of_state: Callable[[jax.Array, jax.Array], jax.Array]


def _lstm_forward(
    state: State, from_input: jax.Array, from_state: jax.Array
) -> tuple[State, jax.Array]:
    i, f, g, o = jnp.split(from_input + from_state, 4)
    i, f, g, o = jax.nn.sigmoid(i), jax.nn.sigmoid(f), jnp.tanh(g), jax.nn.sigmoid(o)
    cell = f * state[1] + i * g
    return (o * jnp.tanh(cell), cell), jnp.concatenate([i, f, g, o])


def _lstm_backward(
    grad: State, state: State, new: State, kept: jax.Array
) -> tuple[State, jax.Array]:
    i, f, g, o = jnp.split(kept, 4)
    bent = jnp.tanh(new[1])
    of_cell = grad[1] + grad[0] * o * (1 - bent * bent)
    share = jnp.concatenate(
        [
            of_cell * g * i * (1 - i),
            of_cell * state[1] * f * (1 - f),
            of_cell * i * (1 - g * g),
            grad[0] * bent * o * (1 - o),
        ]
    )
    return (jnp.zeros_like(grad[0]), of_cell * f), share


def _gru_forward(
    state: State, from_input: jax.Array, from_state: jax.Array
) -> tuple[State, jax.Array]:
    r, z, n = jnp.split(from_input, 3)
    state_r, state_z, state_n = jnp.split(from_state, 3)
    r, z = jax.nn.sigmoid(r + state_r), jax.nn.sigmoid(z + state_z)
    n = jnp.tanh(n + r * state_n)
    return (n + z * (state[0] - n),), jnp.concatenate([r, z, n, state_n])


def _gru_backward(
    grad: State, state: State, new: State, kept: jax.Array
) -> tuple[State, jax.Array]:
    r, z, n, state_n = jnp.split(kept, 4)
    of_n = grad[0] * (1 - z) * (1 - n * n)
    of_z = grad[0] * (state[0] - n) * z * (1 - z)
    return (grad[0] * z,), jnp.concatenate([of_n * state_n * r * (1 - r), of_z, of_n])


def _gru_of_state(share: jax.Array, kept: jax.Array) -> jax.Array:
    """The state's share of the new gate passed the reset gate first; [..., 3 h, b]."""
    of_r, of_z, of_n = jnp.split(share, 3, -2)
    return jnp.concatenate([of_r, of_z, of_n * jnp.split(kept, 4, -2)[0]], -2)


def _same(share: jax.Array, kept: jax.Array) -> jax.Array:
    return share


def _plain_cell(
    bend: Callable[[jax.Array], jax.Array], slope: Callable[[jax.Array], jax.Array]
) -> Cell:
    """Of one gate; `slope` is the derivative of `bend` by its result."""

    def forward(
        state: State, from_input: jax.Array, from_state: jax.Array
    ) -> tuple[State, jax.Array]:
        new = bend(from_input + from_state)
        return (new,), new[:0]

    def backward(grad: State, state: State, new: State, kept: jax.Array) -> tuple[State, jax.Array]:
        return (jnp.zeros_like(grad[0]),), grad[0] * slope(new[0])

    return Cell(forward, backward, _same)


CELLS: dict[str, Cell] = {
    "lstm": Cell(_lstm_forward, _lstm_backward, _same),
    "gru": Cell(_gru_forward, _gru_backward, _gru_of_state),
    "rnn_tanh": _plain_cell(jnp.tanh, lambda new: 1 - new * new),
    "rnn_relu": _plain_cell(jax.nn.relu, lambda new: (new > 0).astype(new.dtype)),
}


@dataclass(frozen=True, slots=True)
class Layers:
    """What torch's recurrent operators are told besides tensors."""

    kind: str
    has_biases: bool
    num_layers: int
    bidirectional: bool
    batch_first: bool

    @property
    def directions(self) -> int:
        return 2 if self.bidirectional else 1

    @property
    def states(self) -> int:
        return 2 if self.kind == "lstm" else 1

    @property
    def per_direction(self) -> int:
        """How many parameters a layer has per direction: w_ih, w_hh and perhaps b_ih, b_hh."""
        return 4 if self.has_biases else 2


def run_layers(layers: Layers, *arrays: jax.Array) -> list[jax.Array]:
    """All layers.

    Args:
      arrays: the input; then the first state or states, each [layers * directions, b, h]; then
        the parameters in torch's order.

    Returns:
        The last layer's outputs, then the last state or states.
    """
    x, *rest = arrays
    first, params = rest[: layers.states], rest[layers.states :]
    x = x.swapaxes(0, 1) if layers.batch_first else x
    last: list[State] = []
    for _ in range(layers.num_layers):
        outputs = []
        for direction in range(layers.directions):
            i = len(last)
            own = params[i * layers.per_direction : (i + 1) * layers.per_direction]
            state = tuple(s[i] for s in first)
            end, out = _direction(CELLS[layers.kind], x, state, own, reverse=direction == 1)
            last.append(end)
            outputs.append(out)
        x = outputs[0] if len(outputs) == 1 else jnp.concatenate(outputs, -1)
    x = x.swapaxes(0, 1) if layers.batch_first else x
    return [x, *(jnp.stack(parts) for parts in zip(*last))]


def _direction(
    cell: Cell, x: jax.Array, state: State, params: Sequence[jax.Array], *, reverse: bool
) -> tuple[State, jax.Array]:
    """The last state, each [b, h], and the outputs [t, b, h]."""
    w_ih, w_hh, *biases = params
    from_input = jnp.einsum("tbi,gi->tgb", x, w_ih)
    if biases:
        from_input = from_input + biases[0][:, None]
    bias = biases[1] if biases else jnp.zeros(w_hh.shape[:1], w_hh.dtype)
    first = tuple(part.T for part in state)
    end, outputs = _loop(cell, reverse, from_input, first, w_hh, bias)
    return tuple(part.T for part in end), outputs.swapaxes(1, 2)


def _loop_plain(
    cell: Cell,
    reverse: bool,
    from_input: jax.Array,
    state: State,
    weight: jax.Array,
    bias: jax.Array,
) -> tuple[State, jax.Array]:
    """The last state and the outputs [t, h, b], from the input's share of the gates [t, g h, b]."""
    return _loop_forward(cell, reverse, from_input, state, weight, bias)[0]


_Saved = tuple[State, State, jax.Array, jax.Array]


def _loop_forward(
    cell: Cell,
    reverse: bool,
    from_input: jax.Array,
    state: State,
    weight: jax.Array,
    bias: jax.Array,
) -> tuple[tuple[State, jax.Array], _Saved]:
    def step(state: State, from_input: jax.Array) -> tuple[State, tuple[State, jax.Array]]:
        new, kept = cell.forward(state, from_input, weight @ state[0] + bias[:, None])
        return new, (new, kept)

    end, (states, kept) = lax.scan(step, state, from_input, reverse=reverse)
    return (end, states[0]), (state, states, kept, weight)


def _loop_backward(
    cell: Cell, reverse: bool, saved: _Saved, grads: tuple[State, jax.Array]
) -> tuple[jax.Array, State, jax.Array, jax.Array]:
    first, states, kept, weight = saved
    to_state = weight.T
    before = tuple(
        jnp.concatenate([at[1:], start[None]] if reverse else [start[None], at[:-1]])
        for start, at in zip(first, states)
    )

    def step(grad: State, at: tuple[jax.Array, State, State, jax.Array]) -> tuple[State, jax.Array]:
        grad_output, state, new, kept = at
        grad = (grad[0] + grad_output, *grad[1:])
        (own, *others), share = cell.backward(grad, state, new, kept)
        return (own + to_state @ cell.of_state(share, kept), *others), share

    grad_end, grad_outputs = grads
    over_time = (grad_outputs, before, states, kept)
    grad_first, shares = lax.scan(step, grad_end, over_time, reverse=not reverse)
    of_state = cell.of_state(shares, kept)
    grad_weight = jnp.einsum("tgb,thb->gh", of_state, before[0])
    return shares, grad_first, grad_weight, of_state.sum((0, 2))


_loop = jax.custom_vjp(_loop_plain, nondiff_argnums=(0, 1))
_loop.defvjp(_loop_forward, _loop_backward)
