"""Who called: the user's frames on this thread's stack, ours and torch's left out."""

import functools
import importlib.util
import os
import sys
from collections.abc import Iterator
from types import FrameType
from typing import NamedTuple


def _folders(package: str) -> list[str]:
    """Where a package's files lie, without importing it."""
    spec = importlib.util.find_spec(package)
    return list(spec.submodule_search_locations or ()) if spec is not None else []


def _prefixes(*packages: str) -> tuple[str, ...]:
    return tuple(folder + os.sep for package in packages for folder in _folders(package))


OUR_PACKAGES = (
    "torch_xdist",
    "torch_xdist.launcher",
    "torch_xdist.loaders",
    "torch_xdist.collectives",
    "torch_xla",
)
_OURS = _prefixes(*OUR_PACKAGES)
_OURS_AND_TORCH = _OURS + _prefixes("torch")
# Where torch takes an operator apart, or wraps a function: nothing there is the user's.
_WRAPPERS = (
    "_ops.py", "_compile.py", "_dynamo", "_decomp", "_refs", "_prims", "utils/_python_dispatch.py",
    "autograd/function.py",
)  # fmt: skip
_UNTOLD = (
    *_OURS,
    *(folder + name for folder in _prefixes("torch") for name in _WRAPPERS),
    "<frozen",
)


class Place(NamedTuple):
    """A line of a function."""

    function: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.function} ({self.file}:{self.line})"


@functools.lru_cache(maxsize=4096)
def is_user_file(name: str) -> bool:
    """Whether a file is neither ours, nor torch's, nor the interpreter's."""
    return not name.startswith(_OURS_AND_TORCH) and not name.startswith("<frozen")


def _user_frames() -> Iterator[FrameType]:
    """Innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if is_user_file(name):
            yield frame
        frame = frame.f_back


def user_line() -> str:
    """The file:line of the innermost frame that is neither ours nor torch's."""
    # Each cut asks: `_user_frames`, without its generator.
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if is_user_file(name):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return "<no user code>"


def shortened(where: str) -> str:
    """A file and line of the user's, from the working directory where the file is inside that."""
    return where.removeprefix(os.getcwd() + os.sep)


def user_frames() -> list[str]:
    """Every such frame, innermost first: `function (file:line)`."""
    return [str(_place(frame)) for frame in _user_frames()]


def frames_of_user() -> list[str]:
    """The innermost such frame and all that lead to it, also ours and torch's, innermost first."""
    frame = next(_user_frames(), None)
    found = []
    while frame is not None:
        found.append(str(_place(frame)))
        frame = frame.f_back
    return found


def called_by_user() -> str:
    """The frame of ours or torch's that the user's innermost one called: how it came here."""
    called = sys._getframe(1)
    user = next(_user_frames(), None)
    while called.f_back is not None and called.f_back is not user:
        called = called.f_back
    return str(_place(called))


def all_places() -> tuple[Place, ...]:
    """Every frame of this thread above the caller's, innermost first."""
    found = []
    frame = sys._getframe(1).f_back
    while frame is not None:
        found.append(_place(frame))
        frame = frame.f_back
    return tuple(found)


def told(places: tuple[Place, ...]) -> tuple[Place, ...]:
    """The places without our own and those where torch takes operators apart."""
    return tuple(place for place in places if is_told(place.file))


def is_told(file: str) -> bool:
    """Whether lines of this file say what the user, or a module of torch, wrote."""
    return not file.startswith(_UNTOLD)


def _place(frame: FrameType) -> Place:
    code = frame.f_code
    return Place(code.co_name, code.co_filename, frame.f_lineno)
