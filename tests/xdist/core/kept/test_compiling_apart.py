"""A signal whose handler raises while XLA compiles: it is raised when XLA is done."""

import signal
import threading
import time

import jax
import pytest
from jax._src import compiler

import torch_xla
from torch_xdist.core.kept import compiling_apart

torch_xla.device()


class Interrupt(Exception):
    """What the handler of these tests raises."""


@pytest.fixture
def alarm():
    """Starts a timer whose handler raises; ends it, and what was there before is back."""

    def handle(*_):
        raise Interrupt

    before = signal.signal(signal.SIGALRM, handle)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_jax_compiles_on_a_thread_of_its_own():
    threads = set()
    threading.setprofile(lambda *_: threads.add(threading.current_thread().name))
    try:
        jax.jit(lambda x: x * 3 + 41).lower(1.0).compile()
    finally:
        threading.setprofile(None)
    assert "xdist-compile" in threads


def test_a_second_call_changes_nothing():
    usual = compiler.backend_compile_and_load
    compiling_apart.install()
    assert compiler.backend_compile_and_load is usual


def test_what_a_handler_raises_comes_when_the_call_is_done(alarm):
    threads = []

    def call(seconds):
        threads.append(threading.current_thread())
        time.sleep(seconds)
        threads.append("done")

    alarm(0.05)
    spent = time.process_time()
    with pytest.raises(Interrupt):
        compiling_apart.without_signals(call, 0.4)
    assert time.process_time() - spent < 0.2  # it waits, and does not look again and again
    assert threads[0] is not threading.main_thread() and threads[1] == "done"
    threads[0].join(5)
    assert not threads[0].is_alive()


def test_results_and_errors_come_back():
    assert compiling_apart.without_signals(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError, match=r"division by zero|modulo by zero"):
        compiling_apart.without_signals(divmod, 7, 0)


def test_another_thread_calls_at_once():
    seen = []
    thread = threading.Thread(
        target=lambda: seen.append(compiling_apart.without_signals(threading.current_thread))
    )
    thread.start()
    thread.join()
    assert seen == [thread]
