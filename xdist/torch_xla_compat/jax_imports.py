"""torch_xla's precautions around `import jax`. Here JAX is what runs, so none is needed."""

import contextlib
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, TypeVar

import jax

F = TypeVar("F", bound=Callable[..., Any])


def maybe_get_jax(log: bool = True) -> ModuleType:
    """JAX. It is always there, so `log` has nothing to say."""
    return jax


def maybe_get_torchax() -> ModuleType | None:
    """The package torchax, where it is installed; None where it is not."""
    try:
        import torchax  # type: ignore[import-not-found]
    except ImportError:
        return None
    return torchax


def jax_import_guard() -> None:
    """Nothing to guard: the device's runtime and JAX are one."""


@contextlib.contextmanager
def jax_env_context() -> Iterator[None]:
    """A block in which JAX may be used, as everywhere."""
    yield


def requires_jax(func: F) -> F:
    """The function itself: JAX is always there."""
    return func
