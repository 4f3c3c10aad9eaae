"""`torch_xla._XLAC.profiler`: what torch_xla's profiler is made of, on JAX's."""

import time
from collections.abc import Mapping

import jax

from torch_xdist.core.trace.notes import enter_scope, leave_scope
from torch_xdist.debug import remote_profile
from torch_xdist.debug.profiler_sessions import profiler_server, profiler_session

TraceMe = jax.profiler.TraceAnnotation


# How long the end of a server waits for a profile that runs, and for its files to be written.
_RUNNING_S, _WRITING_S, _LOOK_S = 60, 1, 0.02


class ProfilerServer:
    """A server of profiles; it ends with the object, after the profile that runs."""

    def __init__(self, port: int) -> None:
        # The first operator would load these, which takes longer than many a profile.
        import grpc  # noqa: F401
        import torch._dynamo  # noqa: F401

        self._server = profiler_server(port)

    def __del__(self) -> None:
        # The native server waits as well, but lets nobody else into Python, which a profile needs
        # to end.
        if not TraceMe.is_enabled():
            return
        until = time.monotonic() + _RUNNING_S
        while time.monotonic() < until and (TraceMe.is_enabled() or remote_profile.RUNNING):
            time.sleep(_LOOK_S)
        # What another process asked for is written after its end.
        time.sleep(_WRITING_S)


class ScopePusher:
    """A named block that ends with the object."""

    def __init__(self, name: str) -> None:
        enter_scope(name)

    def __del__(self) -> None:
        leave_scope()


class TslProfilerSessionWrapper:
    """A profile that begins with the object."""

    def __init__(self) -> None:
        self._session = profiler_session()

    def stop(self) -> bytes:
        """End it; what was found, as a serialized XSpace."""
        return bytes(self._session.stop())

    def export(self, xspace: bytes, dump_dir: str) -> None:
        """Write what `stop` gave where TensorBoard looks for it."""
        self._session.export(xspace, dump_dir)


def start_server(port: int) -> ProfilerServer:
    """Let others fetch profiles at `port` for as long as the result is kept."""
    return ProfilerServer(port)


def scope_pusher(name: str) -> ScopePusher:
    """Begin a named block; it ends with the result."""
    return ScopePusher(name)


def trace(
    service_addr: str,
    logdir: str,
    duration_ms: int = 1000,
    num_tracing_attempts: int = 3,
    timeout_s: int = 120,
    interval_s: int = 5,
    *,
    options: Mapping[str, int],
) -> None:
    """Profile the processes whose servers listen at these addresses."""
    remote_profile.collect(
        service_addr, logdir, duration_ms, num_tracing_attempts, timeout_s, interval_s, options
    )
