"""What is asked of JAX beside its public interface, each with what is done where it is gone."""

from collections.abc import Callable
from typing import Any

import jax
from jax._src import config

_settings = getattr(config, "trace_context", None)


def tracing_settings() -> Any:
    """Everything that changes what JAX makes of a function: precision, promotion, ... Hashable.

    JAX keys its own cache of programs by it. Where a release of JAX has it no more, it is the
    precision of matrix products alone, the one of these that this package lets users choose.
    """
    return _settings() if _settings is not None else jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]


def callable_of(compiled: jax.stages.Compiled) -> Callable[..., Any]:
    """A compiled program as JAX's C++ calls it, where it does, without Python in between."""
    try:
        fast = compiled._executable.create_cpp_call(compiled._params)
    except AttributeError:
        fast = None
    return compiled if fast is None else fast


def in_one_call(results: list[Any], function: Callable[..., Any], *arguments: Any) -> None:
    """`results.append(function(*arguments))`, with nothing of Python in between for a C function.

    After a call Python looks for signals before it stores what the call returned.
    """
    results.extend(map(function, *[(argument,) for argument in arguments]))
