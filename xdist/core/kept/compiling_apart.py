"""XLA compiles on a thread of its own, where no signal ends the call in the middle.

Python's main thread looks for signals when a function of C returns. Where a handler raises just
there, as Ctrl-C and timeouts do, jaxlib's compilation leaves the memory of the process in disorder:
it crashes some seconds later, anywhere (jax 0.10.2 alone, without anything of ours, too). No signal
is handled on another thread. So the main thread waits for one, and what a handler raised meanwhile
is raised when XLA is done, as before.
"""

import functools
import threading
from collections.abc import Callable
from typing import Any

from torch_xdist.releases import patches


def install() -> None:
    """Have JAX compile so, from the start of its devices on. A second call changes nothing."""
    patches.wrap("jax._src.compiler.backend_compile_and_load", _apart)


def _apart(usual: Callable[..., Any]) -> Callable[..., Any]:
    return functools.wraps(usual)(functools.partial(without_signals, usual))


def without_signals(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function where no handler of a signal raises inside of it."""
    if threading.current_thread() is not threading.main_thread():
        return function(*args, **kwargs)
    done: list[tuple[Any, BaseException | None]] = []
    # Thread.join takes a thread for ended where a signal interrupts it: a lock does not.
    is_over = threading.Lock()
    is_over.acquire()

    def run() -> None:
        try:
            done.append((function(*args, **kwargs), None))
        except BaseException as error:
            done.append((None, error))
        finally:
            is_over.release()

    threading.Thread(target=run, name="xdist-compile", daemon=True).start()
    interrupt: BaseException | None = None
    while not done:
        try:
            is_over.acquire()
        except BaseException as error:  # Ctrl-C: when XLA is done
            interrupt = error
    if interrupt is not None:
        raise interrupt
    result, failure = done[0]
    if failure is not None:
        raise failure
    return result
