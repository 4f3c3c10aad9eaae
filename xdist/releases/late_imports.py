"""Completing a module of torch when somebody imports it: some take too long to import for all."""

import importlib.util
import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Complete = Callable[[ModuleType], None]


def when_imported(name: str, complete: Complete) -> None:
    """Call `complete` with a module, now if it is loaded, else when it is imported.

    A second call for a module that nobody imported yet changes nothing.
    """
    if name in sys.modules:
        complete(sys.modules[name])
    elif not is_awaited(name):
        sys.meta_path.insert(0, _Completing(name, complete))


def is_awaited(name: str) -> bool:
    """Whether a module will be completed when it is imported."""
    return any(isinstance(finder, _Completing) and finder.name == name for finder in sys.meta_path)


class _Completing(MetaPathFinder):
    """Finds the module once, as everybody else would."""

    def __init__(self, name: str, complete: Complete) -> None:
        self.name = name
        self._complete = complete

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """The module's spec, with a loader that completes it."""
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.loader is not None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            self._complete(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
