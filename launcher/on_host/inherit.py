"""The nursery as a fork of the process that calls `spawn`, so that what it has imported is not
imported again.

A fork is a promise: to the ranks it must look like a process that was started for them. So it is
taken only where the caller has one thread, no device, and no module of its own but `__main__`
(`can`); whoever else calls gets a fresh nursery, which imports torch a second time. The conductor
and the agent are forked too, because the agent must be the nursery's parent and the conductor the
agent's, and at once become fresh programs.
"""

import atexit
import contextlib
import ctypes
import gc
import logging
import os
import signal
import site
import socket
import sys
import sysconfig
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from multiprocessing import util as multiprocessing_util
from typing import Any, NoReturn

from torch_xdist.system import process_tree
from torch_xdist.system.errors import ProcessError
from torch_xdist.system.frames import Link
from torch_xdist.system.process import Child

_PYTHON = ("-P", "-m")
_PACKAGES = (
    *("torch_xdist", "torch_xdist.launcher", "torch_xdist.collectives", "torch_xdist.loaders"),
    *("torch_xdist.system", "torch_xla", "torch_xla_py"),
)
_BLOCKED = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
# A fork keeps what the caller holds for as long as the job runs: a large caller is not forked.
_MOST_RESIDENT_BYTES = 4 << 30
_LISTED_S = 0.05
_kept: list[object] = []


def can() -> bool:
    """Whether a fork of this process can pass for a fresh one, and saves anything."""
    return (
        "torch" in sys.modules
        and threading.current_thread() is threading.main_thread()
        and has_one_thread()
        and resident_bytes() <= _MOST_RESIDENT_BYTES
        and not _has_a_device()
        and _is_plain(sys.modules["torch"])
        and not own_modules()
    )


def own_modules() -> list[str]:
    """The modules, apart from `__main__`, that are the caller's own and no installed library's.

    What they hold (open files, connections, settings) is made afresh in a fresh process, and would
    not be in a fork.
    """
    paths = sysconfig.get_paths()
    places = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    places += [*site.getsitepackages(), site.getusersitepackages()]
    ours = [
        os.path.dirname(os.path.realpath(file))
        for name in _PACKAGES
        if (file := getattr(sys.modules.get(name), "__file__", None))
    ]
    libraries = tuple(
        {kind(place) + os.sep for place in [*places, *ours] for kind in (str, os.path.realpath)}
    )
    return [
        name
        for name, file in _files().items()
        if not (file.startswith(libraries) or os.path.realpath(file).startswith(libraries))
    ]


def _files() -> dict[str, str]:
    """The modules that came from a file, apart from `__main__`, with that file.

    A lazy module is imported in earnest when it is asked for anything, even for its dictionary.
    """
    found = {}
    for name, module in list(sys.modules.items()):
        with contextlib.suppress(AttributeError):
            file = object.__getattribute__(module, "__dict__").get("__file__") or ""
            if os.path.isabs(file) and name not in ("__main__", "__mp_main__"):
                found[name] = file
    return found


def fork_conductor(
    job_id: str, warmth: str, mark: str, link: socket.socket, environ: Mapping[str, str]
) -> Child | None:
    """Start conductor, agent and nursery; the conductor, or None where the kernel refuses to fork.

    Args:
        mark: see `agent.Agent`.
        link: the conductor's end of the socket to the caller.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()
    old = signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
    try:
        pid = os.fork()
    except OSError:
        return None
    else:
        if pid == 0:
            chain = _ProcessChain(job_id, warmth, mark, environ)
            _in_child(lambda: chain.be_conductor(link.fileno()), old)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)
    try:
        return Child(pid)
    except ProcessError:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return None


def _in_child(action: Callable[[], None], mask: set[int]) -> NoReturn:
    """Nothing of the caller's runs in a child: neither its handlers, nor what follows the call."""
    try:
        for number in signal.valid_signals():
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.setsid()
        action()
    finally:
        os._exit(70)


class _ProcessChain:
    """What the three processes turn into, each in its own fork."""

    def __init__(self, job_id: str, warmth: str, mark: str, environ: Mapping[str, str]) -> None:
        self._job_id, self._warmth, self._mark = job_id, warmth, mark
        self._environ = environ

    def be_conductor(self, link: int) -> None:
        theirs, ours = socket.socketpair()
        agent = os.fork()
        if agent == 0:
            ours.close()
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
            _in_child(lambda: self._be_agent(theirs.fileno()), mask)
        words = [self._job_id, self._warmth, self._mark, str(agent), str(ours.fileno())]
        self._become("ways_in.conductor", words, {0: link}, ours.fileno())

    def _be_agent(self, orders: int) -> None:
        ours, theirs = socket.socketpair()
        parent = os.getpid()
        nursery = os.fork()
        if nursery == 0:
            try:
                process_tree.die_with_parent()
                if os.getppid() == parent:
                    self._be_nursery(theirs)
            finally:
                os._exit(70)
        words = [self._job_id, self._warmth, self._mark, str(nursery), str(ours.fileno())]
        self._become("on_host.agent", words, {0: orders}, ours.fileno())

    def _be_nursery(self, agent: socket.socket) -> None:
        # A nursery forked from a light process would have to load this for nothing.
        from torch_xdist.launcher.on_host import nursery

        name, value = self._mark.split("=")
        os.environ.clear()
        os.environ.update(self._environ, XLA_RUN_JOB_ID=self._job_id, **{name: value})
        reserved = give_up_files({agent.fileno()})
        disown()
        nursery.be(Link(agent), self._warmth, self._mark, reserved)

    def _become(self, module: str, words: list[str], moved: dict[int, int], kept: int) -> None:
        """Replace this process by a module of ours; its stdout and stderr stay."""
        for target, fd in moved.items():
            os.dup2(fd, target)
        process_tree.close_all_but({0, 1, 2, kept})
        os.set_inheritable(kept, True)
        name = f"torch_xdist.launcher.{module}"
        os.execve(sys.executable, [sys.executable, *_PYTHON, name, *words], dict(self._environ))


def give_up_files(keep: set[int]) -> frozenset[int]:
    """Let go of all files and sockets but `keep`, stdout and stderr; the numbers they had.

    The numbers stay taken, by the null device: an inherited Python file that is closed one day
    would otherwise close whatever had got its number.
    """
    null = os.open(os.devnull, os.O_RDWR)
    found = {int(name) for name in os.listdir("/proc/self/fd")} - {1, 2, null} - keep
    for fd in found:
        os.dup2(null, fd, inheritable=False)
    os.close(null)
    os.dup2(0, 0, inheritable=True)
    return frozenset(found - {0})


def disown() -> None:
    """Forget what is the caller's alone: its exit handlers, its tracing and settings."""
    _kept.append(sys.modules["__main__"])  # frames of the caller stay; so must what they use
    sys.settrace(None)
    sys.setprofile(None)
    sys.excepthook, sys.displayhook = sys.__excepthook__, sys.__displayhook__
    _forget_exits()
    multiprocessing_util._finalizer_registry.clear()  # type: ignore[attr-defined]
    multiprocessing_util._run_after_forkers()  # type: ignore[attr-defined]
    logging.root.handlers.clear()
    logging.root.setLevel(logging.WARNING)
    _forget_classes()
    _default_torch(sys.modules["torch"])
    if "torch_xdist.settings" in sys.modules:
        sys.modules["torch_xdist.settings"].reread()
    if "torch_xdist.core.devices.device" in sys.modules:
        sys.modules["torch_xdist.core.devices.device"].set_default_seed(0)
    gc.enable()


def _forget_exits() -> None:
    """No exit handler of the caller runs in a rank; those of the libraries do."""
    kept: list[Callable[[], object]] = [logging.shutdown]
    for module, name in (("jax._src.dispatch", "wait_for_tokens"), ("jax._src.api", "clean_up")):
        if action := getattr(sys.modules.get(module), name, None):
            kept.append(action)
    atexit._clear()
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]
    weakref.finalize._registered_with_atexit = False  # type: ignore[attr-defined]
    for action in kept:
        atexit.register(action)


def _forget_classes() -> None:
    """The caller's classes come by value, as new ones, not as those that the fork has."""
    tracker: Any = sys.modules.get("cloudpickle.cloudpickle")
    for name in ("_DYNAMIC_CLASS_TRACKER_BY_ID", "_DYNAMIC_CLASS_TRACKER_BY_CLASS"):
        getattr(tracker, name, {}).clear()


def _default_torch(torch: Any) -> None:
    """What scripts are wont to set, as a fresh process has it."""
    torch.set_default_dtype(torch.float32)
    torch.set_grad_enabled(True)
    if torch.are_deterministic_algorithms_enabled():
        torch.use_deterministic_algorithms(False)


def _is_plain(torch: Any) -> bool:
    """Whether no mode of torch is on that every call after it would feel (a default device too)."""
    modes = torch._C._len_torch_function_stack() + torch._C._len_torch_dispatch_stack()
    return not (modes or torch.is_inference_mode_enabled() or torch.is_autocast_enabled("cpu"))


def has_one_thread() -> bool:
    """Whether no thread runs beside this one; those of OpenBLAS are ended, as every fork does."""
    if threading.active_count() == 1 and _tasks() > 1:
        _end_blas_threads()
        # The kernel lists a thread for a moment after it was joined.
        until_s = time.monotonic() + _LISTED_S
        while _tasks() > 1 and time.monotonic() < until_s:
            time.sleep(0.001)
    return _tasks() == 1


def resident_bytes() -> int:
    """How much memory this process holds."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def _tasks() -> int:
    return len(os.listdir("/proc/self/task"))


def _end_blas_threads() -> None:
    """End the threads that numpy's and scipy's OpenBLAS keep; their next use starts them again."""
    with open("/proc/self/maps") as maps:
        paths = {line.split()[-1] for line in maps if "openblas" in line}
    for path in paths:
        end = getattr(ctypes.CDLL(path), "blas_thread_shutdown_", None)
        if end is not None:
            end()


def _has_a_device() -> bool:
    bridge = sys.modules.get("jax._src.xla_bridge")
    return bridge is not None and bridge.backends_are_initialized()
