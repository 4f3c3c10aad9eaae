"""JAX functions and loops by torch_xla's names: `xb.call_jax`, `scan`, `while_loop`, ..."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_xdist.builder.callables import JaxCallable
from torch_xdist.core.jax_side import control_flow
from torch_xdist.core.trace import global_state

# By the function (or `override_hash`) and JAX's settings; bounded, for a user may make functions
# without end.
_JAX_TO_XLA_COMPUTATION_CACHE: dict[Any, Any] = {}
KEPT = 256


def call_jax(
    jax_func: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any] | None = None,
    name: str | None = None,
    override_hash: Any = None,
) -> Any:
    """`jax_func(*args, **kwargs)` on device tensors, as one row of the trace, with gradients.

    Args:
        jax_func: a JAX function of arrays; returns arrays, nested. Give the same function object
            at every step: another one is another program.
        args, kwargs: nested lists, tuples and dicts of device tensors and plain values; the plain
            values are constants of the program.
        name: accepted for torch_xla's sake.
        override_hash: stands for the function where its object is another at every step.
    """
    key = override_hash or id(jax_func), global_state.of_program()
    found = _JAX_TO_XLA_COMPUTATION_CACHE.get(key)
    if found is None:
        found = JaxCallable(jax_func)
        hold(key, found)
    return found(*args, **(kwargs or {}))


def hold(key: Any, called: Any) -> None:
    """Keep what was traced of a function; the oldest goes where there are too many."""
    if len(_JAX_TO_XLA_COMPUTATION_CACHE) >= KEPT:
        del _JAX_TO_XLA_COMPUTATION_CACHE[next(iter(_JAX_TO_XLA_COMPUTATION_CACHE))]
    _JAX_TO_XLA_COMPUTATION_CACHE[key] = called


def _jax_to_xla_computation_cache_elements() -> int:
    """How many forms of functions `call_jax` and `assume_pure` hold."""
    return sum(len(called._cache) for called in _JAX_TO_XLA_COMPUTATION_CACHE.values())


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
