"""What is asked of JAX beside its public interface, each with what is done where it is gone."""

from collections.abc import Callable
from typing import Any

import jax


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
