"""Completing a module of torch when somebody imports it: some take too long to import for all."""

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
    """Finds the module as everybody else would, until it was imported."""

    def __init__(self, name: str, complete: Complete) -> None:
        self.name = name
        self._complete = complete

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """The module's spec, with a loader that completes it; whoever only asks changes nothing."""
        if name != self.name:
            return None
        others = (f for f in sys.meta_path if f is not self and hasattr(f, "find_spec"))
        found = (finder.find_spec(name, path, target) for finder in others)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None and spec.loader is not None:
            self._let_complete(spec.loader)
        return spec

    def _let_complete(self, loader: Any) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            # A loader may serve other modules too, and be asked for this one several times.
            if module.__name__ == self.name and self in sys.meta_path:
                sys.meta_path.remove(self)
                self._complete(module)

        loader.exec_module = exec_module
