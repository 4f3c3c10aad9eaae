"""One step of an LSTM or GRU cell and its gradient, given both shares of the gates.

The operators, and what they keep for the gradient, are those of torch's kernels for GPUs. A loop
over time that a script writes out has one of each for every time, so gates are looked at as one
array [b, gates, h]: one kernel that all times share, and no array for each gate.
"""

import jax
import jax.numpy as jnp
import numpy as np

from torch_xdist.ops.norm import Maybe
from torch_xdist.ops.operands import widened
from torch_xdist.ops.settled import settled
from torch_xdist.ops.table import lowers

# Which of the gates of an LSTM, [4, 1], is offered to its cell: it goes through tanh.
_OFFER = np.arange(4)[:, None] == 2


def _gates(joined: jax.Array, count: int) -> list[jax.Array]:
    """Of [b, count * h] each part, [b, h]."""
    return [*jnp.moveaxis(_apart(joined, count), 1, 0)]


def _apart(joined: jax.Array, count: int) -> jax.Array:
    """[b, count * h] as [b, count, h]."""
    return joined.reshape(joined.shape[0], count, -1)


def _joined(*parts: jax.Array) -> jax.Array:
    """Arrays [b, h] beside each other, [b, n, h].

    By choosing, as XLA's kernel for a concatenation is compiled for each anew.
    """
    place = jnp.arange(len(parts))[:, None]
    chosen = parts[-1][:, None]
    for at, part in enumerate(parts[:-1]):
        chosen = jnp.where(place == at, part[:, None], chosen)
    return chosen


def _with_bias(share: jax.Array, bias: Maybe) -> jax.Array:
    return widened(share) if bias is None else widened(share) + widened(bias)


@lowers("aten._thnn_fused_lstm_cell.default", shaped=True)
def fused_lstm_cell(
    input_gates: jax.Array,
    hidden_gates: jax.Array,
    cx: jax.Array,
    input_bias: Maybe = None,
    hidden_bias: Maybe = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The next output and cell, [b, h] each, and the gates behind their functions, [b, 4 * h]."""
    gates = _with_bias(input_gates, input_bias) + _with_bias(hidden_gates, hidden_bias)
    apart = _apart(gates, 4)
    kept = settled(jnp.where(_OFFER, jnp.tanh(apart), jax.nn.sigmoid(apart)))
    kept = kept.reshape(gates.shape)
    i, f, g, o = _gates(kept, 4)
    cy = settled(f * widened(cx) + i * g)
    hy = settled(o * jnp.tanh(cy))
    return hy.astype(cx.dtype), cy.astype(cx.dtype), kept.astype(cx.dtype)


@lowers("aten._thnn_fused_lstm_cell_backward_impl.default", shaped=True)
def fused_lstm_cell_backward(
    grad_hy: Maybe,
    grad_cy: Maybe,
    cx: jax.Array,
    cy: jax.Array,
    workspace: jax.Array,
    has_bias: bool,
) -> tuple[jax.Array, jax.Array, Maybe]:
    """The gradients of the gates, [b, 4 * h], of the cell before and of a bias, [4 * h]."""
    kept = widened(workspace)
    i, f, g, o = _gates(kept, 4)
    bent = settled(jnp.tanh(widened(cy)))
    of_hy = jnp.zeros_like(bent) if grad_hy is None else widened(grad_hy)
    of_cell = of_hy * o * (1 - bent * bent)
    of_cell = settled(of_cell if grad_cy is None else of_cell + widened(grad_cy))
    apart = _apart(kept, 4)
    slopes = jnp.where(_OFFER, 1 - apart * apart, (1 - apart) * apart)
    factors = _joined(of_cell * g, of_cell * widened(cx), of_cell * i, of_hy * bent)
    of_gates = settled(factors * slopes).reshape(kept.shape).astype(workspace.dtype)
    of_bias = of_gates.sum(0) if has_bias else None
    return of_gates, settled(of_cell * f).astype(cx.dtype), of_bias


@lowers("aten._thnn_fused_gru_cell.default", shaped=True)
def fused_gru_cell(
    input_gates: jax.Array,
    hidden_gates: jax.Array,
    hx: jax.Array,
    input_bias: Maybe = None,
    hidden_bias: Maybe = None,
) -> tuple[jax.Array, jax.Array]:
    """The next output [b, h], and what its gradient needs, [b, 5 * h]."""
    of_input = _gates(_with_bias(input_gates, input_bias), 3)
    of_hidden = _gates(_with_bias(hidden_gates, hidden_bias), 3)
    reset, update = (
        settled(jax.nn.sigmoid(mine + other)) for mine, other in zip(of_input[:2], of_hidden[:2])
    )
    new = settled(jnp.tanh(of_input[2] + reset * of_hidden[2]))
    before = widened(hx)
    hy = settled(new + update * (before - new))
    kept = settled(_joined(reset, update, new, before, of_hidden[2])).reshape(hx.shape[0], -1)
    return hy.astype(hx.dtype), kept.astype(hx.dtype)


@lowers("aten._thnn_fused_gru_cell_backward.default", shaped=True)
def fused_gru_cell_backward(
    grad_hy: jax.Array, workspace: jax.Array, has_bias: bool
) -> tuple[jax.Array, jax.Array, jax.Array, Maybe, Maybe]:
    """The gradients of both shares, [b, 3 * h], of the output before, and of both biases."""
    reset, update, new, before, hidden = _gates(widened(workspace), 5)
    grad = settled(widened(grad_hy))
    of_update = grad * (before - new) * (1 - update) * update
    of_new = settled(grad * (1 - update) * (1 - new * new))
    of_reset = of_new * hidden * (1 - reset) * reset
    shares = _joined(of_reset, of_update, of_new), _joined(of_reset, of_update, of_new * reset)
    rows, dtype = workspace.shape[0], workspace.dtype
    of_input, of_hidden = (settled(x).reshape(rows, -1).astype(dtype) for x in shares)
    of_biases = (of_input.sum(0), of_hidden.sum(0)) if has_bias else (None, None)
    return of_input, of_hidden, settled(grad * update).astype(dtype), *of_biases
