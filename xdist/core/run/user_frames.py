"""Who called: the user's frames on this thread's stack, ours and torch's left out."""

import importlib.util
import os
import sys
from collections.abc import Iterator
from types import FrameType


def _folders(package: str) -> list[str]:
    """Where a package's files lie, without importing it."""
    spec = importlib.util.find_spec(package)
    return list(spec.submodule_search_locations or ()) if spec is not None else []


OUR_PACKAGES = (
    "torch_xdist",
    "torch_xdist.launcher",
    "torch_xdist.loaders",
    "torch_xdist.collectives",
    "torch_xla",
)
_OURS = tuple(
    folder + os.sep for package in (*OUR_PACKAGES, "torch") for folder in _folders(package)
)


def _user_frames() -> Iterator[FrameType]:
    """Innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_OURS) and not name.startswith("<frozen"):
            yield frame
        frame = frame.f_back


def user_line() -> str:
    """The file:line of the innermost frame that is neither ours nor torch's."""
    for frame in _user_frames():
        return f"{frame.f_code.co_filename}:{frame.f_lineno}"
    return "<no user code>"


def user_frames() -> list[str]:
    """Every such frame, innermost first: `function (file:line)`."""
    return [_text(frame) for frame in _user_frames()]


def called_by_user() -> str:
    """The frame of ours or torch's that the user's innermost one called: how it came here."""
    called = sys._getframe(1)
    user = next(_user_frames(), None)
    while called.f_back is not None and called.f_back is not user:
        called = called.f_back
    return _text(called)


def _text(frame: FrameType) -> str:
    return f"{frame.f_code.co_name} ({frame.f_code.co_filename}:{frame.f_lineno})"
