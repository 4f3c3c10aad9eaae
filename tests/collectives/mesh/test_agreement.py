"""Ranks say which collectives they are about to run, over a store kept in a dictionary."""

import threading
import time

import pytest
from pretend_store import PretendClient

from torch_xdist.collectives import wait_report
from torch_xdist.collectives.errors import CollectiveError, RankLostError
from torch_xdist.collectives.launches import Launch, Launches
from torch_xdist.collectives.mesh import agreement, signs
from torch_xdist.collectives.mesh.agreement import Agreement
from torch_xdist.collectives.mesh.key_value_store import KeyValueStore

SUM, MAX = ("all_reduce(f32[2]) sum", "train.py:7"), ("all_reduce(f32[2]) max", "train.py:9")


def numbered(number, thread="MainThread", threads=("MainThread",), is_other=False):
    launch = Launch(Launches(), "")
    launch.number, launch.thread, launch.threads = number, thread, threads
    launch.is_of_another_thread = is_other
    return launch


def launching(launches):
    """Each rank launches its programs in turn; (the error of each rank or None, the client).

    A launch is (its collectives, whether it waits[, more of the Launch]).
    """
    client, errors = PretendClient(), [None] * len(launches)
    store = KeyValueStore(client, b"secret")
    ranks = [Agreement(rank, len(launches), store) for rank in range(len(launches))]

    def run(rank):
        try:
            for number, (calls, waits, *more) in enumerate(launches[rank], 1):
                ranks[rank].launch(numbered(number, *more), calls, waits=waits)
        except CollectiveError as error:
            errors[rank] = str(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(launches))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    for rank in ranks:
        rank.close()
    return errors, client


def test_equal_programs_go_on_and_leave_one_message_each():
    errors, client = launching([[([SUM], True), ([MAX, SUM], True), ([SUM], False)]] * 3)
    assert errors == [None] * 3
    assert len([key for key in client.values if key.startswith("xdist/program/")]) == 3


def test_the_first_difference_names_the_ranks_and_their_lines():
    errors, _ = launching([[([SUM, SUM], True)], [([SUM, MAX], True)], [([SUM], True)]])
    for message in errors:
        assert "program #1 with collectives: the ranks differ from collective #2 on" in message
        assert "rank 0: all_reduce(f32[2]) sum (train.py:7)" in message
        assert "rank 1: all_reduce(f32[2]) max (train.py:9)" in message
        assert "rank 2: no more" in message


def test_the_line_may_differ_between_ranks():
    elsewhere = (SUM[0], "other.py:1")
    assert launching([[([SUM], True)], [([elsewhere], True)]])[0] == [None, None]


def test_ranks_that_all_differ_are_told_of_by_some_of_them():
    errors, _ = launching([[([(f"all_reduce(f32[{n}]) sum", "a.py:1")], True)] for n in range(12)])
    assert len(set(errors)) == 1
    assert "rank 7: all_reduce(f32[7]) sum (a.py:1); 4 other ranks run others; all" in errors[0]


def test_a_rank_that_does_not_say_what_it_runs_is_told_of_by_its_digest(monkeypatch):
    monkeypatch.setattr(agreement, "_CALLS_S", 0.1)
    monkeypatch.setattr(agreement._Meeting, "_show_calls", lambda self, sides: None)
    errors, _ = launching([[([SUM], True)], [([MAX], True)]])
    assert "rank 1: collectives with the digest " in errors[0] and errors[0] == errors[1]


def test_ranks_whose_judge_falls_silent_name_those_that_differ(monkeypatch):
    monkeypatch.setattr(agreement, "_TEXT_S", 0.1)
    monkeypatch.setattr(agreement._Meeting, "_difference", lambda *_: time.sleep(1.0) or "late")
    errors, _ = launching([[([SUM], True)], [([MAX], True)]])
    assert errors[0] == "late"
    assert (
        "program #1 with collectives: ranks 0 and 1 run different ones, and the rank" in errors[1]
    )


@pytest.mark.parametrize("ranks", [8, 32])
def test_a_new_program_costs_each_rank_a_few_messages(ranks):
    """The first judges: it looks once at all that is there, and waits for those that are not."""
    _, client = launching([[([SUM], True)]] * ranks)
    by_others = {place: n for place, n in client.reads.items() if "verdict" in place}
    assert sum(by_others.values()) <= 3 * ranks
    assert client.values_read <= 12 * ranks


def test_a_rank_hears_from_the_judge_that_another_one_is_lost(monkeypatch):
    monkeypatch.setattr(agreement, "_LOOK_S", 0.05)
    store = KeyValueStore(PretendClient(), b"secret")
    ranks = [Agreement(rank, 3, store, lambda rank: rank == 2) for rank in range(2)]
    told = []

    def run(rank):
        with pytest.raises(RankLostError) as caught:
            rank.launch(numbered(1), [SUM], waits=True)
        told.append(str(caught.value))

    threads = [threading.Thread(target=run, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    for rank in ranks:
        rank.close()
    assert all(text.startswith("rank 2 has ended, while rank ") for text in told)
    assert len(told) == 2 and told[0] != told[1]


def test_where_the_program_is_new_to_some_alone_the_first_of_those_judges():
    old, new = [([SUM], True), ([SUM], False)], [([SUM], True), ([SUM, SUM], True)]
    errors, _ = launching([old, old, new, new])
    assert errors[:2] == [None, None] and errors[2] == errors[3]
    assert "ranks 0 and 1: no more; ranks 2 and 3: all_reduce(f32[2]) sum (train.py:7)" in errors[2]


def waiting(monkeypatch, then, **options):
    """What rank 0 says of rank 1, which does `then` instead of coming."""
    monkeypatch.setattr(agreement, "_LOOK_S", 0.05)
    monkeypatch.setattr(signs, "LEAST_S", 0.05)
    store = KeyValueStore(PretendClient(), b"secret")
    ranks = [Agreement(rank, 2, store, **options) for rank in range(2)]
    timer = threading.Timer(0.5, then, [ranks[1]])
    timer.start()
    try:
        ranks[0].launch(numbered(1), [SUM], waits=True)
    except CollectiveError as error:
        return str(error)
    finally:
        timer.join()
        for rank in ranks:
            rank.close()
    return ""


def test_a_rank_that_ended_is_named(monkeypatch):
    message = waiting(monkeypatch, Agreement.close)
    assert "rank 1 has ended, while rank 0 waited" in message
    assert "in program #1 with collectives, which starts with all_reduce(f32[2]) sum (tr" in message


def test_a_rank_without_a_sign_of_life_is_named(monkeypatch):
    monkeypatch.setattr(agreement, "_LOST_S", 0.3)
    silent = lambda rank: setattr(rank.signs, "_tell", lambda beat: None)  # noqa: E731
    assert "rank 1 gave no sign of life for 0 s, while rank 0" in waiting(monkeypatch, silent)


def test_a_late_rank_is_told_of_and_waited_for(monkeypatch, capsys):
    monkeypatch.setattr(wait_report, "REPORT_EVERY_S", 0.2)
    assert waiting(monkeypatch, lambda rank: rank.launch(numbered(1), [SUM], waits=False)) == ""
    told = capsys.readouterr().err
    assert "rank 0 has waited 0 s in program #1 with collectives" in told
    assert "for rank 1" in told


@pytest.mark.parametrize("again", [SUM, MAX])
def test_a_rank_that_runs_a_program_again_is_found_within_a_second(again):
    first = [([SUM], True), ([again], True)]
    second = [([SUM], True), ([SUM], False)]
    errors, _ = launching([first, second])
    if again is SUM:
        assert errors == [None, None]
    else:
        assert "rank 0: all_reduce(f32[2]) max" in errors[0]
        assert "rank 1: all_reduce(f32[2]) sum" in errors[0]
        assert errors[1] is None


def test_a_rank_that_ended_without_a_word_is_named_at_once(monkeypatch):
    start_s = time.monotonic()
    message = waiting(monkeypatch, lambda rank: None, has_ended=lambda rank: rank == 1)
    assert "rank 1 has ended, while rank 0 waited" in message
    assert time.monotonic() - start_s < 5


def test_a_rank_that_came_and_then_ended_did_its_part():
    store = KeyValueStore(PretendClient(), b"secret")
    first, second = (Agreement(rank, 2, store, lambda rank: rank == 1) for rank in range(2))
    second.launch(numbered(1), [SUM], waits=False)
    second.close()
    first.launch(numbered(1), [SUM], waits=True)
    first.close()


THREADS = ("MainThread", "A", "B")


def test_threads_in_another_order_are_named_though_their_programs_are_alike():
    errors, _ = launching(
        [
            [([SUM], True, "A", THREADS), ([SUM], True, "B", THREADS)],
            [([SUM], True, "B", THREADS), ([SUM], True, "A", THREADS)],
        ]
    )
    for message in errors:
        assert (
            "program #1 with collectives: rank 0: all_reduce(f32[2]) sum (train.py:7) in threa"
            in message
        )
        assert "in thread 'A'; rank 1: all_reduce(f32[2]) sum (train.py:7) in thread 'B'" in message
        assert "these threads launch collectives in another order on these ranks" in message


def test_a_known_program_of_another_thread_meets_the_others():
    """Over accelerators only a launch from the thread of the one before goes without."""
    errors, _ = launching(
        [
            [([SUM], True, "A", THREADS), ([SUM], False, "B", THREADS, True)],
            [([SUM], True, "A", THREADS), ([SUM], False, "A", THREADS)],
        ]
    )
    assert "in thread 'B'; rank 1" in errors[0] and errors[1] is None


def test_another_failure_of_the_store_is_raised():
    client = PretendClient()
    rank = Agreement(0, 2, KeyValueStore(client, b"secret"))

    def gone(key, timeout_ms):
        raise RuntimeError("INTERNAL: no such thing")

    client.blocking_key_value_get_bytes = gone
    with pytest.raises(RuntimeError, match="INTERNAL: no such thing"):
        rank.launch(numbered(1), [SUM], waits=True)
    rank.close()
