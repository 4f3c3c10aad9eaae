"""JAX functions and loops by torch_xla's names: `xb.call_jax`, `scan`, `while_loop`, ..."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_xdist.core.jax_side import control_flow
from torch_xdist.core.jax_side.from_jax import from_jax


def call_jax(
    jax_func: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any] | None = None,
    name: str | None = None,
    override_hash: str | None = None,
) -> Any:
    """`jax_func(*args, **kwargs)` on device tensors, as one row of the trace, with gradients.

    Args:
        jax_func: a JAX function of arrays; returns one or a tuple of arrays. Give the same
            function object at every step: another one is another program.
        args, kwargs: nested lists, tuples and dicts of device tensors and plain values; the plain
            values are constants of the program.
        name, override_hash: accepted for torch_xla's sake.
    """
    leaves, structure = pytree.tree_flatten((tuple(args), kwargs or {}))
    # 2, 2.0 and True are equal, but JAX promotes by their types.
    static = tuple(None if isinstance(v, torch.Tensor) else (type(v), v) for v in leaves)
    operator = _operator(jax_func, structure, static)
    return operator(*(v for v in leaves if isinstance(v, torch.Tensor)))


# As many as a user may give, one for each of them that is used in turn.
@functools.lru_cache(maxsize=256)
def _operator(
    jax_func: Callable[..., Any], structure: Any, static: tuple[tuple[type, Any] | None, ...]
) -> Callable[..., Any]:
    """A torch function of the tensors alone; `static` has None in their places."""
    places = [i for i, leaf in enumerate(static) if leaf is None]
    constants = [None if leaf is None else leaf[1] for leaf in static]

    def function(*arrays: Any) -> Any:
        filled = list(constants)
        for place, array in zip(places, arrays):
            filled[place] = array
        args, kwargs = pytree.tree_unflatten(filled, structure)
        return jax_func(*args, **kwargs)

    return from_jax(function)


def scan(
    fn: Callable[..., Any],
    init: Any,
    xs: Any,
    partition_fn: Any = None,
    is_fn_pure: bool = False,
) -> tuple[Any, Any]:
    """`fn(carry, x) -> (carry, y)` along dim 0 of `xs`, as one loop of the program.

    Args:
        partition_fn, is_fn_pure: accepted for torch_xla's sake.

    Returns the last carry, and the ys stacked along dim 0.
    """
    return control_flow.scan(fn, init, xs)


def while_loop(
    cond_fn: Callable[..., Any],
    body_fn: Callable[..., Any],
    carried_inputs: Any,
    additional_inputs: Any = None,
) -> Any:
    """Repeat `body_fn(*carried)` while `cond_fn(*carried)` is true, as one loop of the program.

    `additional_inputs` is accepted for torch_xla's sake: what the functions read is found.
    """
    return control_flow.while_loop(cond_fn, body_fn, carried_inputs)


def fori_loop(lower: int, upper: int, body_fun: Callable[..., Any], *init_val: torch.Tensor) -> Any:
    """`value = body_fun(i, value)` for i from `lower` to below `upper`, as one loop."""
    count = torch.tensor(lower, device=init_val[0].device)

    def body(i: torch.Tensor, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        result = body_fun(i, *values)
        return (i + 1, *(result if isinstance(result, tuple) else (result,)))

    _, *results = while_loop(lambda i, *values: i < upper, body, (count, *init_val))
    return results[0] if len(results) == 1 else tuple(results)
