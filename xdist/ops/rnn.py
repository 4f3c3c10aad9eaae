"""Recurrent layers as one loop over time per layer and direction.

torch makes a recurrent layer of a dozen operators per time step; here a step is one turn of a
loop. The products with the input are taken before it for all times at once, and so is the gradient
of the recurrent weight after the loop that goes back, so a loop holds one small matmul and
elementwise work. Called by `core/composites/recurrent.py`; arrays are time-major, [t, b, ...].

The batch comes before the features everywhere, so that what a loop gives is the side of the large
products as it lies: with the features first, as until 2026-11-27, seven matrices of [t b, g h] were
turned around in each layer's step. The recurrent weight is turned once, before the loop. Each step
keeps what its gradient needs, so the way back has no other product and no sigmoid.

What a turn gives is written over what it read: XLA fills what a `lax.scan` gives with zeros first,
once for all arrays of one shape, and copies that for each.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from torch_xdist.ops import forms

# Elements of a recurrent weight from which a CPU takes two products of half of it, where gates and
# features make halves. XLA's second thread has often gone to sleep when the product of a turn
# comes, and two operators wake it sooner than the parts of one; each core then has its half in its
# own cache.
# Layers before, after, forward and backward, on two cores of an EPYC with 1 MB each (2026-11-27):
#   LSTM of b 2, h 256: 3.5 ms, 2.9    32, 256: 23.3, 20.8    16, 384: 13.4, 12.6
#   8, 256: 8.3, 6.6                   64, 256: 26.7, 24.7    16, 512: 22.8, 22.3
#   GRU, two gates and one: 8, 256: 5.0, 5.5    16, 512: 16.5, 17.8
_TWO_PRODUCTS = 2**18
# Gates, or what else there is of each: [b, h], or [t, b, h] of all times.
Parts = Sequence[jax.Array]
# The state of a layer: its output first; an LSTM has its cell beside it. Each is [b, h].
State = tuple[jax.Array, ...]


@dataclass(frozen=True, slots=True)
class Cell:
    """One step of a layer and its gradient; `g` gates make the share of the input.

    The gradient is linear in that of the next state, so most of it is computed for all times
    before the loop that goes back: its slopes, with which the loop multiplies.

    Attributes:
        forward: from a state, the input's and the state's share of the gates to the next state and
            what is kept.
        keeps: how many arrays that are, with the state as many as gates or more.
        slopes: of all times: from the states before, the states and what was kept to the slopes of
            the state's share of each gate, those of the input's where it is another, and what else
            `backward` needs.
        backward: from the gradient of the next state and the latter to the gradient of the state
            beside its product, and the factors of the slopes.
        takes: which of the factors each gate's slope is multiplied with.
        not_added: the last so many gates are not a sum of both shares, so that their bias in the
            state's is not just added to the input's.
    """

    forward: Callable[[State, Parts, Parts], tuple[State, Parts]]
    keeps: int
    slopes: Callable[[State, State, Parts], tuple[Parts, Parts, Parts]]
    backward: Callable[[State, Parts], tuple[State, Parts]]
    takes: tuple[int, ...] = (0,)
    not_added: int = 0


def _lstm_forward(state: State, from_input: Parts, from_state: Parts) -> tuple[State, Parts]:
    i, f, g, o = (mine + other for mine, other in zip(from_input, from_state))
    i, f, g, o = jax.nn.sigmoid(i), jax.nn.sigmoid(f), jnp.tanh(g), jax.nn.sigmoid(o)
    cell = f * state[1] + i * g
    return (o * jnp.tanh(cell), cell), (i, f, g, o)


def _lstm_slopes(before: State, states: State, kept: Parts) -> tuple[Parts, Parts, Parts]:
    i, f, g, o = kept
    bent = jnp.tanh(states[1])
    of_gates = (
        g * i * (1 - i),
        before[1] * f * (1 - f),
        i * (1 - g * g),
        bent * o * (1 - o),
    )
    return of_gates, (), (o * (1 - bent * bent), f)


def _lstm_backward(grad: State, others: Parts) -> tuple[State, Parts]:
    of_bent, f = others
    of_cell = grad[1] + grad[0] * of_bent
    return (jnp.zeros_like(grad[0]), of_cell * f), (of_cell, grad[0])


def _gru_forward(state: State, from_input: Parts, from_state: Parts) -> tuple[State, Parts]:
    r, z, n = from_input
    state_r, state_z, state_n = from_state
    r, z = jax.nn.sigmoid(r + state_r), jax.nn.sigmoid(z + state_z)
    n = jnp.tanh(n + r * state_n)
    return (n + z * (state[0] - n),), (r, z, n, state_n)


def _gru_slopes(before: State, states: State, kept: Parts) -> tuple[Parts, Parts, Parts]:
    """The state's share of the new gate passed the reset gate first."""
    r, z, n, state_n = kept
    of_n = (1 - z) * (1 - n * n)
    of_state = (of_n * state_n * r * (1 - r), (before[0] - n) * z * (1 - z), of_n * r)
    return of_state, (of_n,), (z,)


def _gru_backward(grad: State, others: Parts) -> tuple[State, Parts]:
    return (grad[0] * others[0],), (grad[0],)


def _plain_cell(
    bend: Callable[[jax.Array], jax.Array], slope: Callable[[jax.Array], jax.Array]
) -> Cell:
    """Of one gate; `slope` is the derivative of `bend` by its result."""

    def forward(state: State, from_input: Parts, from_state: Parts) -> tuple[State, Parts]:
        return (bend(from_input[0] + from_state[0]),), ()

    def slopes(before: State, states: State, kept: Parts) -> tuple[Parts, Parts, Parts]:
        return (slope(states[0]),), (), ()

    def backward(grad: State, others: Parts) -> tuple[State, Parts]:
        return (jnp.zeros_like(grad[0]),), grad

    return Cell(forward, 0, slopes, backward)


CELLS: dict[str, Cell] = {
    "lstm": Cell(_lstm_forward, 4, _lstm_slopes, _lstm_backward, (0, 0, 0, 1)),
    "gru": Cell(_gru_forward, 4, _gru_slopes, _gru_backward, (0, 0, 0), not_added=1),
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
    has_lengths: bool = False

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
        the parameters in torch's order; then, where sequences have lengths of their own, 1 for
        each time of theirs and 0 for those after, [t, b, 1], which has no gradient.

    Returns:
        The last layer's outputs, then the last state or states. After the end of a sequence they
        stay what they are, and a reverse direction begins there.
    """
    x, *rest = arrays
    within = rest.pop() if layers.has_lengths else None
    first, params = rest[: layers.states], rest[layers.states :]
    x = x.swapaxes(0, 1) if layers.batch_first else x
    last: list[State] = []
    for _ in range(layers.num_layers):
        outputs = []
        for direction in range(layers.directions):
            i = len(last)
            own = params[i * layers.per_direction : (i + 1) * layers.per_direction]
            state = tuple(s[i] for s in first)
            end, out = _direction(CELLS[layers.kind], x, state, own, within, reverse=direction == 1)
            last.append(end)
            outputs.append(out)
        x = outputs[0] if len(outputs) == 1 else jnp.concatenate(outputs, -1)
    x = x.swapaxes(0, 1) if layers.batch_first else x
    return [x, *(jnp.stack(parts) for parts in zip(*last))]


def _direction(
    cell: Cell,
    x: jax.Array,
    state: State,
    params: Sequence[jax.Array],
    within: jax.Array | None,
    *,
    reverse: bool,
) -> tuple[State, jax.Array]:
    """The last state, each [b, h], and the outputs [t, b, h]."""
    w_ih, w_hh, *biases = params
    from_input = jnp.einsum("tbi,gi->tbg", x, w_ih)
    added = len(w_hh) - cell.not_added * w_hh.shape[1]
    inner = biases[1][added:] if biases else jnp.zeros(len(w_hh) - added, x.dtype)
    if biases:
        from_input = from_input + (biases[0] + jnp.pad(biases[1][:added], (0, len(inner))))
    return _loop(cell, reverse, from_input, state, w_hh, inner, within)


def _halves(weight: jax.Array, axis: int) -> list[jax.Array]:
    """The recurrent weight in parts whose products a loop takes beside each other."""
    hidden = weight.shape[1]
    are_even = hidden % 2 == 0 and len(weight) // hidden % 2 == 0
    are_two = forms.chosen().is_host and are_even and weight.size >= _TWO_PRODUCTS
    return jnp.split(weight, 2, axis) if are_two else [weight]


def _loop_plain(
    cell: Cell,
    reverse: bool,
    from_input: jax.Array,
    state: State,
    weight: jax.Array,
    bias: jax.Array,
    within: jax.Array | None,
) -> tuple[State, jax.Array]:
    """The last state and the outputs [t, b, h], from the input's share of the gates [t, b, g h].

    Args:
        bias: of the state's share of the gates that are `not_added`, in one dim.
        within: whether a time is one of its sequence, [t, b, 1]; None: each is.
    """
    step = _stepping(cell, weight, bias)

    def turn(state: State, at: tuple[Parts, jax.Array | None]) -> tuple[State, jax.Array]:
        from_input, is_within = at
        new = _where(is_within, step(state, from_input)[0], state)
        return new, new[0]

    return lax.scan(turn, state, (_gates(from_input, weight), within), reverse=reverse)


def _where(is_within: jax.Array | None, new: State, old: State) -> State:
    """The new state, or where a sequence is over the old one."""
    if is_within is None:
        return new
    return tuple(jnp.where(is_within > 0, n, o) for n, o in zip(new, old))


def _gates(of_all: jax.Array, weight: jax.Array) -> list[jax.Array]:
    """Arrays of their own of the gates that stand beside each other in the last dim.

    A kernel of XLA's for CPUs that reads several slices of one array at a time step takes its
    numbers one by one, seven times as long.
    """
    return jnp.split(of_all, len(weight) // weight.shape[1], -1)


def _stepping(
    cell: Cell, weight: jax.Array, bias: jax.Array
) -> Callable[[State, Parts], tuple[State, Parts]]:
    """A step of the cell with its product, by the state and the input's share of the gates."""
    to_gates = [part.T for part in _halves(weight, 0)]

    def step(state: State, from_input: Parts) -> tuple[State, Parts]:
        products = [state[0] @ part for part in to_gates]
        from_state = [
            gate for p in products for gate in jnp.split(p, p.shape[1] // len(weight.T), 1)
        ]
        if cell.not_added:
            from_state[-1] = from_state[-1] + bias
        return cell.forward(state, from_input, from_state)

    return step


def _at(of_all: Parts, t: jax.Array) -> list[jax.Array]:
    """What [t, b, ...] have at a time."""
    return [lax.dynamic_index_in_dim(one, t, 0, keepdims=False) for one in of_all]


def _with(at: Parts, of_all: Parts, t: jax.Array) -> list[jax.Array]:
    """[t, b, ...] with these at a time."""
    return [lax.dynamic_update_index_in_dim(one, new, t, 0) for one, new in zip(of_all, at)]


def _rooms(weight: jax.Array, count: int, shape: tuple[int, ...]) -> list[jax.Array]:
    """Arrays that a loop writes over; of different values, or XLA makes one and copies it."""
    return [jnp.broadcast_to(weight[i % len(weight), 0], shape) for i in range(count)]


_Saved = tuple[State, State, Parts, jax.Array, jax.Array | None]


def _loop_forward(
    cell: Cell,
    reverse: bool,
    from_input: jax.Array,
    state: State,
    weight: jax.Array,
    bias: jax.Array,
    within: jax.Array | None,
) -> tuple[tuple[State, jax.Array], _Saved]:
    """What is kept of a time is written over the input's share, which no one reads after it."""
    step = _stepping(cell, weight, bias)
    gates = _gates(from_input, weight)
    times, kept = len(from_input), cell.keeps
    rooms = _rooms(weight, kept + len(state) - len(gates), gates[0].shape)

    def turn(i: jax.Array, carry: tuple[State, list[jax.Array]]) -> tuple[State, list[jax.Array]]:
        state, of_all = carry
        t = times - 1 - i if reverse else i
        new, kept = step(state, _at(of_all[: len(gates)], t))
        new = _where(None if within is None else within[t], new, state)
        return new, _with((*kept, *new), of_all, t)

    end, of_all = lax.fori_loop(0, times, turn, (state, [*gates, *rooms]))
    saved = (state, tuple(of_all[kept:]), tuple(of_all[:kept]), weight, within)
    return (end, of_all[kept]), saved


def _loop_backward(
    cell: Cell, reverse: bool, saved: _Saved, grads: tuple[State, jax.Array]
) -> tuple[jax.Array, State, jax.Array, jax.Array, jax.Array | None]:
    """The gradient of a time's share is written over its slopes.

    Where the input's share is another, its factor is, over the gradient of the output, and both are
    computed from that at the end: with two arrays in the loop XLA's second thread is woken for one.
    """
    first, states, kept, weight, within = saved
    before = tuple(
        jnp.concatenate([at[1:], start[None]] if reverse else [start[None], at[:-1]])
        for start, at in zip(first, states)
    )
    of_state, of_input, others = cell.slopes(before, states, kept)
    if within is not None:
        of_state, of_input = ([s * within for s in slopes] for slopes in (of_state, of_input))
    slopes = jnp.concatenate(of_state, 2)
    to_state = _halves(weight, 1)
    grad_end, grad_outputs = grads
    times, are_two = len(grad_outputs), bool(of_input)

    def turn(i: jax.Array, carry: tuple[State, jax.Array]) -> tuple[State, jax.Array]:
        grad, over = carry
        t = i if reverse else times - 1 - i
        both = [over, slopes] if are_two else [grad_outputs, over]
        grad_output, slope, *at = _at([*both, *others], t)
        grad = (grad[0] + grad_output, *grad[1:])
        new, factors = cell.backward(grad, at)
        own, *rest = _where(None if within is None else within[t], new, grad)
        share = slope * jnp.concatenate([factors[i] for i in cell.takes], 1)
        back = jnp.concatenate([share @ part for part in to_state], 1)
        return (own + back, *rest), _with(factors if are_two else [share], [over], t)[0]

    over = grad_outputs if are_two else slopes
    grad_first, written = lax.fori_loop(0, times, turn, (grad_end, over))
    shares = jnp.concatenate([s * written for s in of_state], 2) if are_two else written
    # Over t, then b, as the input's share has it: one copy that XLA turns around serves both.
    over_rows = (((0, 1), (0, 1)), ((), ()))
    grad_weight = lax.dot_general(shares, before[0], over_rows)
    added = len(weight) - cell.not_added * weight.shape[1]
    grad_bias = shares[..., added:].sum((0, 1))
    more = [slope * written for slope in of_input]
    of_gates = jnp.concatenate([shares[..., :added], *more], 2) if more else shares
    return of_gates, grad_first, grad_weight, grad_bias, jax.tree.map(jnp.zeros_like, within)


_loop = jax.custom_vjp(_loop_plain, nondiff_argnums=(0, 1))
_loop.defvjp(_loop_forward, _loop_backward)
