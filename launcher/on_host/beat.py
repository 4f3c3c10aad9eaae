"""The heartbeat of a rank: a thread that says every two seconds how far the rank has come.

That it begins to wait for others is told at once: one of them may have ended. Between beats the
thread looks for orders of the agent.

The core writes its progress into `torch_xdist.progress.PROGRESS`; this only reads, and only where
that module is loaded. Before the first step only the user's line is known.
"""

import contextlib
import os
import select
import sys
import sysconfig
import threading
import time
from typing import Any

from torch_xdist.launcher.facts.records import MOST_RECENT
from torch_xdist.launcher.on_host.orders import Orders
from torch_xdist.system.frames import Link, Message

# More than so many absent ranks are not told of one by one by each rank that waits for them.
_MOST_WAITED_FOR = 32
_LOOK_S = 0.5
# (file, line) of each frame, the innermost first.
_Stack = list[tuple[str, int]]
_stop = threading.Event()
_recent: list[tuple[int, str]] = []
_LIBRARIES = tuple(
    {os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("purelib", "stdlib")}
)
_PACKAGES = (
    *("torch_xdist", "torch_xdist.launcher", "torch_xdist.collectives", "torch_xdist.loaders"),
    *("torch_xdist.system", "torch_xla"),
)


def start(link: Link, every_s: float, orders: Orders) -> None:
    """Start the thread; it ends with the process, or with `stop`."""
    main = threading.main_thread().ident or 0
    threading.Thread(
        target=_beat, args=(link, every_s, main, orders), daemon=True, name="heartbeat"
    ).start()


def stop() -> None:
    """No further beat."""
    _stop.set()


def last() -> Message:
    """The newest heartbeat, as the message that says "finished" carries it."""
    return {"heartbeat": read(0)}


def read(main_thread: int) -> dict[str, Any]:
    """`records.Heartbeat` as JSON."""
    stack = _stack(main_thread)
    progress = _progress()
    if progress is None:
        return {"state": "outside", "where": _line(stack)}
    seq, mark = int(progress.collective), str(progress.fingerprint)
    if seq and (not _recent or _recent[-1][0] != seq):
        _recent.append((seq, mark))
        del _recent[:-MOST_RECENT]
    state = _state(progress, stack)
    # The core says where the last program was started; a rank in the user's own code is elsewhere.
    own = _line(stack) if state in ("running", "outside", "starting") else ""
    return {
        "step": int(progress.step),
        "resumed": progress.resumed,
        "seq": seq,
        "state": state,
        "collective": str(progress.name),
        "where": own or str(progress.where) or _line(stack),
        "waits_in": str(progress.waits_in),
        "waits_for": list(progress.waits_for[:_MOST_WAITED_FOR]) if state == "waiting" else [],
        "by_all": bool(seq) and _needs_all(),
        "recent": list(_recent),
    }


def _progress() -> Any:
    """What the core has written, where it is loaded."""
    return getattr(sys.modules.get("torch_xdist.progress"), "PROGRESS", None)


def _state(progress: Any, stack: _Stack) -> str:
    """A rank whose innermost Python frame is in jax or in the device waits for its results."""
    # The first run of a program counts as its compilation, until it is known to wait.
    if progress.waits_for:
        return "waiting"
    if progress.compiling:
        return "compiling"
    if progress.starting:
        return "starting"
    if progress.collective and stack and _is_device_code(stack[0][0]):
        return "waiting"
    return "running" if progress.step or progress.collective else "outside"


def _needs_all() -> bool:
    """Whether every collective is a program of all ranks: on XLA's own transport it is."""
    world = sys.modules.get("torch_xdist.world")
    return world is not None and world.world_size() > 1 and world.transport() == "mesh"


def _is_device_code(filename: str) -> bool:
    parts = filename.replace("\\", "/").split("/")
    return "jax" in parts or "jaxlib" in parts or _is_ours(filename)


def _is_ours(filename: str) -> bool:
    """Whether a file belongs to this product, wherever its packages are installed."""
    files = [getattr(sys.modules.get(name), "__file__", None) for name in _PACKAGES]
    folders = tuple(os.path.dirname(os.path.realpath(file)) + os.sep for file in files if file)
    return os.path.realpath(filename).startswith(folders)


def _stack(thread: int) -> _Stack:
    """What a thread runs, the innermost first.

    Taken in one go, before anything lets that thread run on: a frame that ends meanwhile may have
    a neighbour that is none any more (seen with CPython 3.11: a dict).
    """
    found: _Stack = []
    frame = sys._current_frames().get(thread)
    with contextlib.suppress(AttributeError):
        while frame is not None:
            found.append((frame.f_code.co_filename, frame.f_lineno or 0))
            frame = frame.f_back
    return found


def _line(stack: _Stack) -> str:
    """ "train.py:77": the innermost line of the user's own code on a stack."""
    for filename, number in stack:
        library = os.path.realpath(filename).startswith(_LIBRARIES)
        if not (library or _is_ours(filename) or filename.startswith("<frozen")):
            return f"{os.path.basename(filename)}:{number}"
    return ""


def _beat(link: Link, every_s: float, main_thread: int, orders: Orders) -> None:
    told_s, told_waits = time.monotonic(), False
    news = select.poll()
    news.register(orders.fileno(), select.POLLIN)
    while not _stop.is_set():
        if news.poll(1000 * min(every_s, _LOOK_S)) and not orders.look():
            return
        progress = _progress()
        waits = bool(progress is not None and progress.waits_for)
        is_news = waits and not told_waits
        # Half a look: what is due within it is due.
        if time.monotonic() - told_s < every_s - _LOOK_S / 2 and not is_news:
            continue
        told_s, told_waits = time.monotonic(), waits
        # Whom a rank waits for is as old as its look at them: another look may take seconds.
        made_s = min(told_s, progress.looked_s) if waits and progress is not None else told_s
        if not link.send({"op": "beat", "made_s": made_s, "heartbeat": read(main_thread)}):
            return
