"""A rank from the inside: runs the function or the script, says how it went, leaves in order.

The only module of the launcher that imports torch and jax (`warm`, called once in the nursery).
A rank never ends through the interpreter's exit after a failure: JAX would sit in its shutdown
barrier while the peers wait. It reports, and is gone by `os._exit`.
"""

import atexit
import builtins
import contextlib
import faulthandler
import importlib
import importlib.machinery
import os
import random
import runpy
import socket
import sys
import threading
import traceback
import types
import warnings
from collections.abc import Callable
from multiprocessing import util as multiprocessing_util
from typing import Any, NoReturn

from torch_xdist.launcher.facts import payload, settings
from torch_xdist.launcher.facts.errors import PayloadError
from torch_xdist.launcher.on_host import beat
from torch_xdist.launcher.on_host.orders import Orders
from torch_xdist.system.frames import Link, Message, from_memory_file

_MOST_TEXT = 200_000


def warm() -> None:
    """Import what every rank needs (torch and jax), without starting a backend or a thread."""
    for name in settings.preimported(settings.environment()):
        # What fails here fails again in the ranks that need it, with a line of the user's.
        with contextlib.suppress(Exception):
            importlib.import_module(name)


def run(sock: socket.socket, task: Message, payload_fd: int, stacks_fd: int) -> NoReturn:
    """Be the rank: run `task`, report, wait for the others, end the process.

    Args:
        payload_fd: a memory file with the pickled function, for a task of that kind.
        stacks_fd: where the stacks go that the agent asks for.
    """
    link = Link(sock)
    faulthandler.enable(file=2, all_threads=False)
    faulthandler.register(settings.STACK_SIGNAL, file=stacks_fd, all_threads=True)
    _settle(task)
    orders = Orders(link)
    beat.start(link, float(task["beat_s"]), orders)
    link.send({"op": "arrived"})
    try:
        result = _call(task, payload_fd)
        _finish_threads()
        blob = _pickled_result(result)
    except SystemExit as stop:
        _leave_by(link, stop, orders)
    except BaseException as error:
        _fail(link, error)
    else:
        _leave(link, orders, blob)
    os._exit(70)


def _settle(task: Message) -> None:
    """Make the fork look like a process that was started for this rank alone."""
    sys.argv = list(task["argv"]) or [""]
    sys.path[:0] = task["sys_path"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    # They were seeded once, in the nursery: every rank would draw the same numbers.
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()
    if "torch" in sys.modules and task.get("threads"):
        # OMP_NUM_THREADS was read when torch was imported, before this rank existed.
        sys.modules["torch"].set_num_threads(int(task["threads"]))
    if "jax" in sys.modules:
        _configure_jax(sys.modules["jax"])
    # DataLoader workers are forked from ranks on purpose; see docs/launching.md.
    warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called", category=RuntimeWarning)
    warnings.filterwarnings(
        "ignore", message=r".*use of fork\(\) may lead to deadlocks", category=DeprecationWarning
    )


def _configure_jax(jax: types.ModuleType) -> None:
    """A lost peer is an error to catch instead of an abort, and SIGTERM ends the rank."""
    for name, value in (
        ("jax_enable_recoverability", True),
        ("jax_enable_preemption_service", False),
    ):
        with contextlib.suppress(AttributeError):
            jax.config.update(name, value)


def _call(task: Message, payload_fd: int) -> Any:
    kind = task["kind"]
    if kind == "function":
        function, args = payload.loads(from_memory_file(payload_fd))
        os.close(payload_fd)
        return function(task["rank"], *args)
    if kind == "module":
        runpy.run_module(task["argv"][0], run_name="__main__", alter_sys=True)
    else:
        _run_script(task["argv"][0])
    return None


def _run_script(path: str) -> None:
    """Run a file as `__main__`, which stays: threads and pickles may need it afterwards."""
    main = sys.modules["__main__"]
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    main.__file__, main.__loader__ = path, loader
    main.__builtins__ = builtins  # type: ignore[attr-defined]
    exec(loader.source_to_code(loader.get_data(path), path), main.__dict__)


def _finish_threads() -> None:
    """What a Python process does when its main program ends: child processes, then threads."""
    multiprocessing_util._exit_function()  # type: ignore[attr-defined]
    threading._shutdown()  # type: ignore[attr-defined]


def _pickled_result(result: Any) -> bytes:
    return b"" if result is None else payload.dumps_value(result)


def _leave_by(link: Link, stop: SystemExit, orders: Orders) -> None:
    """`sys.exit`: None and 0 are a finish, a number is a code, anything else a message and 1."""
    if stop.code is None or stop.code == 0:
        _finish_threads()
        _leave(link, orders, b"")
    code = stop.code if isinstance(stop.code, int) else 1
    message = "" if isinstance(stop.code, int) else str(stop.code)
    if message:
        print(message, file=sys.stderr)
    _report(link, {"kind": "exit", "exit_code": code & 0xFF, "message": message}, code & 0xFF)


def _fail(link: Link, error: BaseException) -> None:
    """Report an exception as text: it need not survive pickling."""
    if isinstance(error, KeyboardInterrupt):
        _report(link, {"kind": "exit", "exit_code": 130, "message": "interrupted"}, 130)
    pickling = isinstance(error, PayloadError)
    facts = {
        "kind": "pickle" if pickling else "exception",
        "exit_code": 1,
        "type": type(error).__name__,
        "message": _text(error),
        "traceback": "" if pickling else payload.traceback_text(error)[-_MOST_TEXT:],
    }
    _report(link, facts, 1, payload.dumps_exception(error))


def _report(link: Link, facts: Message, code: int, blob: bytes = b"") -> NoReturn:
    _flush()
    link.send({"op": "failed", **beat.last(), **facts}, *([blob] if blob else []))
    os._exit(code)


def _text(error: BaseException) -> str:
    try:
        return str(error)[:_MOST_TEXT]
    except Exception as broken:
        return f"(its text cannot be made: {type(broken).__name__})"


def _leave(link: Link, orders: Orders, blob: bytes) -> NoReturn:
    """Say that this rank finished, wait until all have, run the exit handlers, end."""
    _flush()
    orders.finish()
    beat.stop()
    link.send({"op": "finished", **beat.last()}, *([blob] if blob else []))
    orders.await_release()
    # JAX's own exit handler waits for all ranks; here all have finished.
    _quietly(atexit._run_exitfuncs)  # type: ignore[attr-defined]
    _flush()
    os._exit(0)


def _quietly(action: Callable[[], object]) -> None:
    try:
        action()
    except BaseException:
        traceback.print_exc()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
