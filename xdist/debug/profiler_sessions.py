"""What is asked of JAX's profiler beside its public interface: sessions, and a server that ends."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch_xdist.core.programs.jax_internals import need
from torch_xdist.releases import patches

try:
    from jaxlib import _profiler  # type: ignore[attr-defined]
except ImportError:
    _profiler = None


def profiler_server(port: int) -> Any:
    """A server from which others fetch profiles of this process, for as long as it is kept."""
    need(hasattr(_profiler, "start_server"), "server of its profiler that can be ended")
    return _profiler.start_server(port)


def profiler_session(*, python_calls: bool = True) -> Any:
    """A profile that begins now: `stop()` gives an XSpace, `export(xspace, folder)` writes it.

    Args:
        python_calls: every call of a Python function is noted, which slows Python down.
    """
    need(hasattr(_profiler, "ProfilerSession"), "profiler's session")
    options = _profiler.ProfileOptions()
    options.python_tracer_level, options.enable_hlo_proto = int(python_calls), True
    return _profiler.ProfilerSession(options)


@contextlib.contextmanager
def before_other_sessions(action: Callable[[], object]) -> Iterator[None]:
    """Let `action` be called first wherever Python begins a profile of this process.

    XLA has one session at a time, and a second one fails when it is ended.
    """
    need(hasattr(_profiler, "ProfilerSession"), "profiler's session")
    patches.wrap("jaxlib._profiler.ProfilerSession", _announced)
    _before_sessions.append(action)
    try:
        yield
    finally:
        _before_sessions.remove(action)


# What is called first wherever Python begins a profile.
_before_sessions: list[Callable[[], object]] = []


def _announced(session: Any) -> Any:
    def begin(*args: Any, **kwargs: Any) -> Any:
        for action in tuple(_before_sessions):
            action()
        return session(*args, **kwargs)

    return begin
