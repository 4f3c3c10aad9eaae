"""The distribution name torch_xla: refuse a real one beside ours, and answer to it otherwise.

Libraries ask `importlib.metadata` which torch_xla is installed. This package is installed as
torch-xdist, so it answers that question itself once it is imported.
"""

import importlib.metadata
import sys
from collections.abc import Iterable
from importlib.metadata import Distribution, DistributionFinder
from pathlib import Path
from typing import Any

from torch_xdist import __version__

_NAME = "torch_xla"


def refuse_other_torch_xla(own_file: str) -> None:
    """Raise ImportError where the distribution torch_xla is installed beside this one.

    Args:
        own_file: the file of the torch_xla package that is being imported.
    """
    try:
        other = importlib.metadata.distribution(_NAME)
    except importlib.metadata.PackageNotFoundError:
        return
    if isinstance(other, OurName):
        return
    raise ImportError(
        f"torch_xla: PyTorch/XLA {other.version} is installed beside torch-xdist, and both are"
        f" imported as torch_xla (found {Path(own_file).parent}); remove one of them: pip uninstall"
        " torch_xla"
    )


class OurName(Distribution):
    """What `importlib.metadata` says about torch_xla: this version, and nothing more."""

    def read_text(self, filename: str) -> str | None:
        if filename != "METADATA":
            return None
        return f"Metadata-Version: 2.1\nName: {_NAME}\nVersion: {__version__}\n"

    def locate_file(self, path: Any) -> Any:
        return Path(__file__).parent / path


class _Finder(DistributionFinder):
    @staticmethod
    def find_spec(*args: Any, **kwargs: Any) -> None:
        return None

    def find_distributions(
        self,
        context: DistributionFinder.Context = DistributionFinder.Context(),  # noqa: B008
    ) -> Iterable[Distribution]:
        name = (context.name or "").lower().replace("-", "_")
        return [OurName()] if name == _NAME else []


def answer_as_torch_xla() -> None:
    """Let `importlib.metadata.version("torch_xla")` answer; a second call changes nothing."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
