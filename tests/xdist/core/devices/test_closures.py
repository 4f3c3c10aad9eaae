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


def test_a_handler_runs_a_round_until_one_fails():
    seen = []

    def fail():
        raise ValueError("the second")

    handler = closures.ClosureHandler()
    with pytest.raises(ValueError, match="the second"):
        handler.run_all([lambda: seen.append(1), fail, lambda: seen.append(3)])
    handler.run(lambda: seen.append(threading.current_thread()))
    assert seen == [1, threading.current_thread()]


def test_an_asynchronous_handler_needs_no_start_and_takes_rounds():
    seen = []
    handler = closures.AsyncClosureHandler(max_queue_size=2)
    handler.start_event_loop()
    handler.run_all([lambda n=n: seen.append(n) for n in range(5)])
    handler.wait()
    assert seen == [0, 1, 2, 3, 4]
