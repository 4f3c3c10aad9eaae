"""SIGTERM to a script whose ranks run: they are asked to end first, and then the script does.

Kubernetes and `timeout` send it to the script alone. Its default action would end the script at
once, and its ranks with it before they could save anything.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def passed_on(ask: Callable[[], None], wait: Callable[[], None]) -> Iterator[None]:
    """Around a wait for ranks: the first SIGTERM asks them, a second one ends this process at once.

    Once it was asked, the ranks are waited for and this process dies of SIGTERM, as it would have
    by default. Nothing, where this is not the main thread or the script has a handler of its own.

    Args:
        ask: lets every rank end as by SIGTERM; called in the signal handler.
        wait: until all have.
    """
    is_default = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if not is_default or threading.current_thread() is not threading.main_thread():
        yield
        return
    asked = False

    def on_first(*_: object) -> None:
        nonlocal asked
        asked = True
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        ask()

    signal.signal(signal.SIGTERM, on_first)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGTERM) is on_first:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if asked:
        wait()
        os.kill(os.getpid(), signal.SIGTERM)
