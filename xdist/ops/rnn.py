"""Recurrent layers as one loop over time per layer and direction.

torch makes a recurrent layer of a dozen operators per time step; here a step is one turn of a
`lax.scan`. The products with the input are taken before the loop for all times at once, and so is
the gradient of the recurrent weight after the backward loop, so a loop holds one small matmul and
elementwise work. Called by `core/composites/recurrent.py`; arrays are time-major, [t, b, ...].
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

# The state of a layer: its output first; an LSTM has its cell beside it.
State = tuple[jax.Array, ...]
# From a state, the input's and the output's share of the gates to the next state.
Cell = Callable[[State, jax.Array, jax.Array], State]


def _lstm_cell(state: State, from_input: jax.Array, from_state: jax.Array) -> State:
    i, f, g, o = jnp.split(from_input + from_state, 4, -1)
    cell = jax.nn.sigmoid(f) * state[1] + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(cell), cell


def _gru_cell(state: State, from_input: jax.Array, from_state: jax.Array) -> State:
    r, z, n = jnp.split(from_input, 3, -1)
    state_r, state_z, state_n = jnp.split(from_state, 3, -1)
    new = jnp.tanh(n + jax.nn.sigmoid(r + state_r) * state_n)
    keep = jax.nn.sigmoid(z + state_z)
    return (new + keep * (state[0] - new),)


def _tanh_cell(state: State, from_input: jax.Array, from_state: jax.Array) -> State:
    return (jnp.tanh(from_input + from_state),)


def _relu_cell(state: State, from_input: jax.Array, from_state: jax.Array) -> State:
    return (jax.nn.relu(from_input + from_state),)


CELLS: dict[str, Cell] = {
    "lstm": _lstm_cell,
    "gru": _gru_cell,
    "rnn_tanh": _tanh_cell,
    "rnn_relu": _relu_cell,
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
    w_ih, w_hh, *biases = params
    from_input = jnp.einsum("tbi,gi->tbg", x, w_ih)
    if biases:
        from_input = from_input + biases[0]
    bias = biases[1] if biases else jnp.zeros(w_hh.shape[:1], w_hh.dtype)
    if cell is _lstm_cell:
        return _lstm_loop(reverse, from_input + bias, state, w_hh)  # type: ignore[arg-type]
    return _loop(cell, reverse, from_input, state, w_hh, bias)


def _scan(
    cell: Cell,
    reverse: bool,
    from_input: jax.Array,
    state: State,
    weight: jax.Array,
    bias: jax.Array,
) -> tuple[State, tuple[jax.Array, State, jax.Array]]:
    """The last state; for every time the output, the state before and its share of the gates."""

    def step(
        state: State, from_input: jax.Array
    ) -> tuple[State, tuple[jax.Array, State, jax.Array]]:
        from_state = jnp.einsum("bh,gh->bg", state[0], weight) + bias
        new = cell(state, from_input, from_state)
        return new, (new[0], state, from_state)

    return lax.scan(step, state, from_input, reverse=reverse)


def _loop_plain(
    cell: Cell,
    reverse: bool,
    from_input: jax.Array,
    state: State,
    weight: jax.Array,
    bias: jax.Array,
) -> tuple[State, jax.Array]:
    end, (outputs, _, _) = _scan(cell, reverse, from_input, state, weight, bias)
    return end, outputs


_Saved = tuple[jax.Array, State, jax.Array, jax.Array]


def _loop_forward(
    cell: Cell,
    reverse: bool,
    from_input: jax.Array,
    state: State,
    weight: jax.Array,
    bias: jax.Array,
) -> tuple[tuple[State, jax.Array], _Saved]:
    end, (outputs, before, from_state) = _scan(cell, reverse, from_input, state, weight, bias)
    return (end, outputs), (from_input, before, from_state, weight)


def _loop_backward(
    cell: Cell, reverse: bool, saved: _Saved, grads: tuple[State, jax.Array]
) -> tuple[jax.Array, State, jax.Array, jax.Array]:
    from_input, before, from_state, weight = saved

    def step(
        grad: State, at: tuple[jax.Array, State, jax.Array, jax.Array]
    ) -> tuple[State, tuple[jax.Array, jax.Array]]:
        grad_output, state, from_input, from_state = at
        grad = (grad[0] + grad_output, *grad[1:])
        grad_state, grad_input, grad_share = jax.vjp(cell, state, from_input, from_state)[1](grad)
        through = jnp.einsum("bg,gh->bh", grad_share, weight)
        return (grad_state[0] + through, *grad_state[1:]), (grad_input, grad_share)

    grad_end, grad_outputs = grads
    over_time = (grad_outputs, before, from_input, from_state)
    first, (grad_inputs, shares) = lax.scan(step, grad_end, over_time, reverse=not reverse)
    grad_weight = jnp.einsum("tbg,tbh->gh", shares, before[0])
    return grad_inputs, first, grad_weight, shares.sum((0, 1))


_loop = jax.custom_vjp(_loop_plain, nondiff_argnums=(0, 1))
_loop.defvjp(_loop_forward, _loop_backward)


# An LSTM keeps its gates for the way back, which then needs no product and one tanh a step, and
# has its weight transposed once: half of the time of the general loop on a CPU.


def _lstm_scan(
    reverse: bool, from_input: jax.Array, state: State, weight: jax.Array
) -> tuple[State, tuple[jax.Array, jax.Array, jax.Array]]:
    """The last state; for every time the output, the cell and the four gates side by side."""
    to_gates = weight.T

    def step(
        state: State, from_input: jax.Array
    ) -> tuple[State, tuple[jax.Array, jax.Array, jax.Array]]:
        i, f, g, o = jnp.split(from_input + state[0] @ to_gates, 4, -1)
        i, f, g, o = jax.nn.sigmoid(i), jax.nn.sigmoid(f), jnp.tanh(g), jax.nn.sigmoid(o)
        cell = f * state[1] + i * g
        new = o * jnp.tanh(cell), cell
        return new, (*new, jnp.concatenate([i, f, g, o], -1))

    return lax.scan(step, state, from_input, reverse=reverse)


def _lstm_plain(
    reverse: bool, from_input: jax.Array, state: State, weight: jax.Array
) -> tuple[State, jax.Array]:
    end, (outputs, _, _) = _lstm_scan(reverse, from_input, state, weight)
    return end, outputs


_LstmSaved = tuple[State, jax.Array, jax.Array, jax.Array, jax.Array]


def _lstm_forward(
    reverse: bool, from_input: jax.Array, state: State, weight: jax.Array
) -> tuple[tuple[State, jax.Array], _LstmSaved]:
    end, (outputs, cells, gates) = _lstm_scan(reverse, from_input, state, weight)
    return (end, outputs), (state, outputs, cells, gates, weight)


def _lstm_backward(
    reverse: bool, saved: _LstmSaved, grads: tuple[State, jax.Array]
) -> tuple[jax.Array, State, jax.Array]:
    state, outputs, cells, gates, weight = saved
    outputs_before, cells_before = (
        jnp.concatenate([at[1:], first[None]] if reverse else [first[None], at[:-1]])
        for first, at in zip(state, (outputs, cells))
    )

    def step(
        grad: State, at: tuple[jax.Array, jax.Array, jax.Array, jax.Array]
    ) -> tuple[State, jax.Array]:
        grad_output, cell, before, gates = at
        i, f, g, o = jnp.split(gates, 4, -1)
        of_output, bent = grad[0] + grad_output, jnp.tanh(cell)
        of_cell = grad[1] + of_output * o * (1 - bent * bent)
        share = jnp.concatenate(
            [
                of_cell * g * i * (1 - i),
                of_cell * before * f * (1 - f),
                of_cell * i * (1 - g * g),
                of_output * bent * o * (1 - o),
            ],
            -1,
        )
        return (share @ weight, of_cell * f), share

    grad_end, grad_outputs = grads
    over_time = (grad_outputs, cells, cells_before, gates)
    first, shares = lax.scan(step, grad_end, over_time, reverse=not reverse)
    return shares, first, jnp.einsum("tbg,tbh->gh", shares, outputs_before)


_lstm_loop = jax.custom_vjp(_lstm_plain, nondiff_argnums=(0,))
_lstm_loop.defvjp(_lstm_forward, _lstm_backward)
