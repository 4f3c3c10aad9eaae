"""Lowerings by family. `load_all` imports every module here, which fills the table."""

import importlib
import pkgutil


def load_all() -> None:
    """Import each module of this folder."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
