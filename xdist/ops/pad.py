"""Padding and its gradients. Each is linear, so a backward is the transpose of its forward."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from torch_xdist.ops.settled import settled_if_complex
from torch_xdist.ops.table import add_rows

End = Callable[[jax.Array, int, int, bool], jax.Array]


def _constant_pad(self: jax.Array, pad: Sequence[int], value: Any = 0) -> jax.Array:
    """`pad` counts from the last dim; a negative count crops."""
    config = [(0, 0, 0)] * self.ndim
    for i in range(len(pad) // 2):
        config[self.ndim - 1 - i] = (pad[2 * i], pad[2 * i + 1], 0)
    return lax.pad(settled_if_complex(self), jnp.asarray(value).astype(self.dtype), config)


def _mirror(x: jax.Array, dim: int, count: int, low: bool) -> jax.Array:
    """The `count` elements next to an end, the end itself left out, in reverse."""
    size = x.shape[dim]
    begin = 1 if low else size - 1 - count
    return lax.rev(lax.slice_in_dim(x, begin, begin + count, axis=dim), (dim,))


def _edge(x: jax.Array, dim: int, count: int, low: bool) -> jax.Array:
    """The element at an end, `count` times."""
    begin = 0 if low else x.shape[dim] - 1
    shape = (*x.shape[:dim], count, *x.shape[dim + 1 :])
    return jnp.broadcast_to(lax.slice_in_dim(x, begin, begin + 1, axis=dim), shape)


def _extend(x: jax.Array, padding: Sequence[int], end: End) -> jax.Array:
    for i in range(len(padding) // 2):
        dim, (low, high) = x.ndim - 1 - i, padding[2 * i : 2 * i + 2]
        parts = [end(x, dim, low, True)] if low > 0 else []
        parts.append(lax.slice_in_dim(x, max(-low, 0), x.shape[dim] - max(-high, 0), axis=dim))
        parts += [end(x, dim, high, False)] if high > 0 else []
        x = jnp.concatenate(parts, dim) if len(parts) > 1 else parts[0]
    return x


def _forward(end: End) -> Callable[[jax.Array, Sequence[int]], jax.Array]:
    return lambda self, padding: _extend(self, padding, end)


def _backward(end: End) -> Callable[[jax.Array, jax.Array, Sequence[int]], jax.Array]:
    def backward(grad_output: jax.Array, self: jax.Array, padding: Sequence[int]) -> jax.Array:
        like = jax.ShapeDtypeStruct(self.shape, grad_output.dtype)
        transpose = jax.linear_transpose(lambda x: _extend(x, padding, end), like)
        return transpose(grad_output)[0]

    return backward


add_rows({"aten.constant_pad_nd.default": _constant_pad})
for _name, _end in (("reflection_pad", _mirror), ("replication_pad", _edge)):
    for _dims in (1, 2, 3):
        add_rows(
            {
                f"aten.{_name}{_dims}d.default": _forward(_end),
                f"aten.{_name}{_dims}d_backward.default": _backward(_end),
            }
        )
