"""The order in which the threads of a rank launch programs with collectives."""

import concurrent.futures
import threading

import numpy as np
import pytest

from torch_xdist.collectives.launches import Launches, are_crossed, thread_name, thread_text


class Result:
    """What a program gives: ready when told."""

    def __init__(self):
        self.ready = threading.Event()

    def block_until_ready(self):
        assert self.ready.wait(20)


def in_thread(work, name=None):
    thread = threading.Thread(target=work, name=name)
    thread.start()
    return thread


def test_a_thread_waits_until_the_program_of_the_one_before_has_ended():
    launches, result, order = Launches(), Result(), []
    with launches.next("a.py:1") as first:
        first.result = result

    def second():
        with launches.next("b.py:2"):
            order.append("second")

    thread = in_thread(second)
    thread.join(0.2)
    order.append("first has ended")
    result.ready.set()
    thread.join(20)
    assert order == ["first has ended", "second"]


def test_a_thread_does_not_wait_for_programs_of_its_own():
    launches = Launches()
    for _ in range(2):
        with launches.next("") as launch:
            launch.result = Result()  # never ready


def test_a_program_that_failed_holds_nobody_up():
    launches = Launches()

    class Failed:
        def block_until_ready(self):
            raise RuntimeError("INTERNAL: MismatchError")

    with launches.next("") as first:
        first.result = Failed()
    done = []

    def second():
        with launches.next("") as launch:
            done.append(launch.number)

    in_thread(second).join(20)
    assert done == [2]


def test_an_error_in_a_launch_lets_the_next_thread_go_on():
    launches = Launches()
    with pytest.raises(RuntimeError, match="no memory"), launches.next(""):
        raise RuntimeError("no memory")
    with launches.next("") as launch:
        assert launch.number == 2


def test_a_launch_knows_its_line_and_the_threads_of_the_rank():
    launches, found = Launches(), []

    def evaluate():
        with launches.next("eval.py:3") as launch:
            found.append(launch)

    in_thread(evaluate, "evaluation").join(20)
    with launches.next("train.py:9") as launch:
        assert {"evaluation", "MainThread"} <= set(launch.threads)
        assert thread_text(launch.thread) == ""
    assert thread_text(found[0].thread) == " in thread 'evaluation'"


def test_a_launch_is_found_by_its_operand_until_it_is_long_past():
    launches, first, second = Launches(), [], []
    for turns in (first, second):
        for number in range(256):
            with launches.next(f"train.py:{number}") as launch:
                turns.append(launch)
                assert launch.operand().dtype == np.uint32
                assert launches.found(int(launch.operand()[0])) is launch
    # The operands are arrays from before, and 0 is that of no launch.
    assert [one.operand() for one in first] == [one.operand() for one in second]
    assert launches.found(int(first[7].operand()[0])) is second[7]
    assert launches.found(0) is None


def test_the_workers_of_a_pool_are_one_thread():
    with concurrent.futures.ThreadPoolExecutor(2, "loads") as pool:
        assert pool.submit(lambda: thread_name(threading.current_thread())).result() == "loads"
    assert thread_name(threading.Thread(name="worker_1")) == "worker_1"


@pytest.mark.parametrize(
    ("threads", "known", "crossed"),
    [
        (["A", "A"], [["A", "B"], ["A", "B"]], False),
        (["A", "B"], [["A", "B"], ["A", "B"]], True),
        (["A", "A", "B"], [["A"], ["A", "B"], ["B", "A"]], True),
        # Names that hold the rank, and threads that one rank alone has.
        (["eval-0", "eval-1"], [["eval-0", "Main"], ["eval-1", "Main"]], False),
        (["Main", "watchdog"], [["Main"], ["Main", "watchdog"]], False),
    ],
)
def test_threads_are_crossed_where_both_ranks_have_both(threads, known, crossed):
    assert are_crossed(threads, known) is crossed


def from_two_threads(rank, size, orders):
    """Threads A and B launch the same program in turns; the sums of each, or its error."""
    import threading

    from rank_programs import summing

    from torch_xdist.collectives.errors import MismatchError

    reduce, found = summing(), {"A": [], "B": []}
    turns = {name: threading.Semaphore(0) for name in "AB"}
    done = threading.Semaphore(0)

    def work(name):
        for turn in range(orders[rank].count(name)):
            turns[name].acquire()
            value = np.full(3, 10.0 ** (name == "B") * (turn + 1), np.float32)
            try:
                found[name].append(reduce(value, f"{name}.py:1").tolist()[0])
            except MismatchError as error:
                found[name].append(str(error))
            done.release()

    threads = [threading.Thread(target=work, args=(name,), name=name) for name in "AB"]
    for thread in threads:
        thread.start()
    for name in orders[rank]:
        turns[name].release()
        done.acquire()
    for thread in threads:
        thread.join()
    return found


def test_programs_of_two_threads_in_one_order_work(pool):
    for found in pool.run(2, from_two_threads, ["ABBAB", "ABBAB"]):
        assert found == {"A": [2.0, 4.0], "B": [20.0, 40.0, 60.0]}


def test_programs_of_two_threads_in_different_orders_are_an_error_that_names_both(pool):
    for found in pool.run(2, from_two_threads, ["ABAB", "BAAB"]):
        wrong = [found["A"][0], found["B"][0]]
        for message in wrong:
            assert "these threads launch collectives in another order on these ranks" in message
        texts = " ".join(wrong)
        assert "rank 0 called all_reduce(sum) of float32[3] #1 (A.py:1) in thread 'A'" in texts
        assert "rank 1 called all_reduce(sum) of float32[3] #1 (B.py:1) in thread 'B'" in texts
        # In the right order again.
        assert found["A"][1] == 4.0 and found["B"][1] == 40.0


def at_once(rank, size, count):
    """Both threads launch as they please; which sums came out, and what was said."""
    import threading

    from rank_programs import summing

    from torch_xdist.collectives.errors import CollectiveError

    reduce, found, started = summing(), [], threading.Barrier(2)

    def work(name, value):
        started.wait()
        for _ in range(count):
            try:
                total = reduce(np.full(3, value, np.float32)).tolist()[0]
            except CollectiveError as error:
                total = type(error).__name__
            found.append((name, total))

    threads = [
        threading.Thread(target=work, args=(n, v), name=n) for n, v in (("A", 1.0), ("B", 10.0))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_threads_that_race_never_get_each_others_sums(pool):
    for found in pool.run(2, at_once, 100):
        assert len(found) == 200
        assert {total for name, total in found if name == "A"} <= {2.0, "MismatchError"}
        assert {total for name, total in found if name == "B"} <= {20.0, "MismatchError"}


def out_of_order(rank, size):
    """The runtime brings a collective of the second program, then one of the first."""
    from torch_xdist.collectives.errors import CollectiveError
    from torch_xdist.collectives.shared_memory import transport
    from torch_xdist.collectives.shared_memory.endpoint import Spec

    end, spec = transport.endpoint(), Spec("all_reduce", "all_reduce(sum)", "sum")
    places = []
    for where in ("train.py:1", "eval.py:2"):
        with end.launch(where) as launch:
            places.append(int(launch.operand()[0]))
    x = np.ones(2, np.float32)
    for place in reversed(places):
        try:
            end.run(spec, place, [x], [x])
        except CollectiveError as error:
            return str(error)
    return None


def test_programs_that_the_runtime_runs_in_another_order_are_an_error(pool):
    told = pool.run(1, out_of_order)[0]
    assert (
        "all_reduce(sum) of launch #1 (train.py:1) comes after collectives of launch #2 (ev" in told
    )
    assert "the runtime has changed the order of programs" in told
