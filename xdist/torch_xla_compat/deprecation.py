"""Old names of functions: each says once which name to use, then calls the new one."""

import functools
import importlib
import logging
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar

from torch_xdist import world

FN = TypeVar("FN", bound=Callable[..., Any])


def deprecated(
    module: ModuleType, new: FN, old_name: str | None = None, extra_msg: str | None = None
) -> FN:
    """`new` under an old name of `module`; the first call logs a warning that names both."""
    old = f"{module.__name__}.{old_name or new.__name__}"
    message = f"{old} is deprecated. Use {new.__module__}.{new.__name__} instead."
    has_warned = False

    @functools.wraps(new)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal has_warned
        if not has_warned:
            has_warned = True
            logging.warning(f"{message} {extra_msg}" if extra_msg else message)
        return new(*args, **kwargs)

    return wrapped  # type: ignore[return-value]


def old_name(function: FN, instead: str) -> FN:
    """`function` under an old name; its first call warns (DeprecationWarning): use `instead`.

    Of several ranks the first one warns.
    """
    has_warned = False

    @functools.wraps(function)
    def warning(*args: Any, **kwargs: Any) -> Any:
        nonlocal has_warned
        if not has_warned:
            has_warned = True
            if world.rank() == 0:
                warnings.warn(f"Use {instead} instead", DeprecationWarning, stacklevel=2)
        return function(*args, **kwargs)

    return warning  # type: ignore[return-value]


def old_module(name: str, instead: str) -> None:
    """Say (DeprecationWarning) that a module is an old one; it calls this when it is imported."""
    warnings.warn(f"{name} is an old name; use {instead}", DeprecationWarning, stacklevel=3)


def mark_deprecated(new: FN, extra_msg: str | None = None) -> Callable[[Any], FN]:
    """Decorate an old function: its calls go to `new`, and the first one logs a warning."""

    def decorate(old: Any) -> FN:
        module = importlib.import_module(old.__module__)
        return deprecated(module, new, old_name=old.__name__, extra_msg=extra_msg)

    return decorate


def register_deprecated(module: ModuleType, new: FN) -> None:
    """Give `module` the function `new` under its own name, as a deprecated one."""
    setattr(module, new.__name__, deprecated(module, new))
