"""Threads for jobs that may wait for other ranks."""

import threading
import time

import pytest

from torch_xdist.collectives.workers import Workers


def threads(name):
    return [thread for thread in threading.enumerate() if thread.name == name]


def test_a_job_never_waits_behind_another():
    workers, released, done = Workers("together"), threading.Event(), threading.Semaphore(0)

    def waits():
        assert released.wait(20)
        done.release()

    for _ in range(3):
        workers.run(waits)
    workers.run(released.set)
    assert all(done.acquire(timeout=20) for _ in range(3))


def test_a_free_thread_is_used_again_and_ends_when_idle():
    workers, names = Workers("reused", idle_s=0.3), set()
    for _ in range(20):
        finished = threading.Event()
        workers.run(lambda finished=finished: (names.add(threading.get_ident()), finished.set()))
        assert finished.wait(20)
        time.sleep(0.005)  # the thread comes back for more
    assert len(names) < 20
    deadline = time.monotonic() + 20
    while threads("reused"):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_jobs_given_while_threads_end_are_all_done():
    workers, count, lock = Workers("ending", idle_s=0.001), [0], threading.Lock()

    def job():
        with lock:
            count[0] += 1

    for _ in range(300):
        workers.run(job)
        time.sleep(0.001)
    deadline = time.monotonic() + 20
    while count[0] < 300:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_job_without_a_thread_is_an_error_and_waited_for_by_nobody(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    workers, done = Workers("refused"), threading.Event()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            workers.run(done.set)
    assert workers.wait(0.0) and not done.is_set()
    workers.run(done.set)
    assert done.wait(20) and workers.wait(20)
