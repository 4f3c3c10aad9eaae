"""Closures that run after a step."""

import threading

import pytest

from torch_xdist.core.devices import closures


@pytest.fixture(autouse=True)
def own_closures(monkeypatch):
    monkeypatch.setattr(closures, "_thread", closures._PerThread())


def test_a_step_closure_runs_once_with_its_arguments():
    seen = []
    closures.add_step_closure(lambda *args: seen.append(args), args=(1, "a"))
    assert seen == []
    closures.run_step_closures()
    closures.run_step_closures()
    assert seen == [(1, "a")]


def test_asynchronous_closures_run_in_order_on_another_thread():
    seen = []
    for number in range(5):
        closures.add_step_closure(
            lambda n: seen.append((n, threading.current_thread())), (number,), run_async=True
        )
    closures.run_step_closures()
    closures.wait_step_closures()
    assert [n for n, _ in seen] == [0, 1, 2, 3, 4]
    assert threading.current_thread() not in {thread for _, thread in seen}


def test_an_exception_in_an_asynchronous_closure_surfaces_at_the_next_one():
    handler = closures.AsyncClosureHandler()
    handler.run(lambda: 1 / 0)
    with pytest.raises(RuntimeError, match="due to previously raised exception") as caught:
        handler.wait()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    with pytest.raises(RuntimeError, match="Cannot run asynchronous closure"):
        handler.run(lambda: None)


def test_an_exception_in_a_closure_reaches_the_step():
    closures.add_step_closure(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        closures.run_step_closures()


def test_no_thread_is_left_when_the_work_is_done():
    handler = closures.AsyncClosureHandler()
    handler.run(lambda: None)
    handler.wait()
    for thread in threading.enumerate():
        if thread.name == "step closures":
            thread.join(10)
    assert all(thread.name != "step closures" for thread in threading.enumerate())


def test_closures_belong_to_the_thread_that_added_them():
    seen = []
    thread = threading.Thread(target=lambda: closures.add_step_closure(seen.append, (1,)))
    thread.start()
    thread.join()
    closures.run_step_closures()
    assert seen == []
