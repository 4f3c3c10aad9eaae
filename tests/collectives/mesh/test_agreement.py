"""Ranks say which collectives they are about to run, over a store kept in a dictionary."""

import threading
import time

import pytest

from torch_xdist.collectives import wait_report
from torch_xdist.collectives.errors import CollectiveError
from torch_xdist.collectives.mesh import agreement
from torch_xdist.collectives.mesh.agreement import Agreement


class Store:
    """What Agreement uses of the client of JAX's coordination service."""

    def __init__(self):
        self.values = {}

    def key_value_set_bytes(self, key, value, allow_overwrite=False):
        assert allow_overwrite or key not in self.values
        self.values[key] = value

    def key_value_try_get_bytes(self, key):
        if key not in self.values:
            raise RuntimeError("NOT_FOUND")
        return self.values[key]

    def blocking_key_value_get_bytes(self, key, timeout_ms):
        deadline_s = time.monotonic() + timeout_ms / 1000
        while time.monotonic() < deadline_s:
            if key in self.values:
                return self.values[key]
            time.sleep(0.005)
        raise RuntimeError("DEADLINE_EXCEEDED")

    def key_value_delete(self, key):
        del self.values[key]


SUM, MAX = ("all_reduce(f32[2]) sum", "train.py:7"), ("all_reduce(f32[2]) max", "train.py:9")


def launching(launches):
    """Each rank launches its programs in turn; (the error of each rank or None, the store)."""
    store, errors = Store(), [None] * len(launches)
    ranks = [Agreement(rank, len(launches), store) for rank in range(len(launches))]

    def run(rank):
        try:
            for calls, meets in launches[rank]:
                ranks[rank].launch(calls, meets=meets)
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
    return errors, store


def test_equal_programs_go_on_and_leave_one_message_each():
    errors, store = launching([[([SUM], True), ([MAX, SUM], True), ([SUM], False)]] * 3)
    assert errors == [None] * 3
    assert len([key for key in store.values if key.startswith("xdist/program/")]) == 3


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


def waiting(monkeypatch, then):
    """What rank 0 says of rank 1, which does `then` instead of coming."""
    monkeypatch.setattr(agreement, "_LOOK_S", 0.05)
    ranks = [Agreement(rank, 2, store) for store in [Store()] for rank in range(2)]
    timer = threading.Timer(0.5, then, [ranks[1]])
    timer.start()
    try:
        ranks[0].launch([SUM], meets=True)
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
    silent = lambda rank: setattr(rank, "_post", lambda beat: None)  # noqa: E731
    assert "rank 1 gave no sign of life for 0 s, while rank 0" in waiting(monkeypatch, silent)


def test_a_late_rank_is_told_of_and_waited_for(monkeypatch, capsys):
    monkeypatch.setattr(wait_report, "REPORT_EVERY_S", 0.2)
    assert waiting(monkeypatch, lambda rank: rank.launch([SUM], meets=False)) == ""
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


def test_another_failure_of_the_store_is_raised():
    store = Store()
    rank = Agreement(0, 2, store)

    def gone(key, timeout_ms):
        raise RuntimeError("UNAVAILABLE")

    store.blocking_key_value_get_bytes = gone
    with pytest.raises(RuntimeError, match="UNAVAILABLE"):
        rank.launch([SUM], meets=True)
    rank.close()
