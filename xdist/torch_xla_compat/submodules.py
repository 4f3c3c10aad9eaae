"""Submodules of a package as its attributes, imported when they are asked for.

torch_xla imports some fifty modules of its own with itself, so that scripts that say `import
torch_xla` alone go on with `torch_xla.debug.metrics` or `torch_xla.distributed.spmd`. They do so
here too, and pay only for what they use.
"""

import importlib
import importlib.util
import sys
from types import ModuleType

from torch_xdist.errors import NotHereError


def on_demand(package: str) -> None:
    """Give a package, which is being imported, its submodules as attributes."""

    def found(name: str) -> ModuleType:
        full = f"{package}.{name}"
        why = f"module {package!r} has no attribute {name!r}"
        if name.startswith("__") or importlib.util.find_spec(full) is None:
            raise AttributeError(why, name=name, obj=module)
        try:
            return importlib.import_module(full)
        except NotHereError as error:
            # So that `hasattr` and `getattr` with a default answer.
            raise AttributeError(f"{why}: {error}", name=name, obj=module) from error

    module = sys.modules[package]
    module.__getattr__ = found  # type: ignore[method-assign, assignment]
