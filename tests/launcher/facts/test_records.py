"""Failure records and heartbeats, and the JSON they travel in."""

import json
from dataclasses import asdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_xdist.launcher.facts.errors import ProtocolError
from torch_xdist.launcher.facts.records import (
    Failure,
    Heartbeat,
    ranks_text,
    signal_name,
)
from torch_xdist.launcher.head.report import describe, fold

KINDS = (
    "exception",
    "signal",
    "exit",
    "early_exit",
    "hang",
    "oom",
    "launch",
    "pickle",
)

TEXT = st.text(max_size=20)


@settings(max_examples=50, deadline=None)
@given(
    st.builds(
        Failure,
        rank=st.integers(0, 9),
        kind=st.sampled_from(KINDS),
        message=TEXT,
        traceback=TEXT,
        tail=st.lists(TEXT, max_size=3).map(tuple),
        signal=st.none() | st.integers(1, 64),
    )
)
def test_a_failure_survives_its_json(failure):
    line = failure.to_json()
    assert "\n" not in line
    read = json.loads(line)
    assert Failure(**{**read, "tail": tuple(read["tail"])}) == failure


def test_a_heartbeat_survives_its_json():
    beat = Heartbeat(
        58, "waiting", 59, "all_reduce", "f, train.py:7", 40, "rendezvous", (2,), True, ((58, "x"),)
    )
    assert Heartbeat.from_json(json.loads(json.dumps(asdict(beat)))) == beat
    assert Heartbeat.from_json({"mood": "bad"}) == Heartbeat()


@pytest.mark.parametrize("data", [{"step": "x"}, {"recent": [1]}, {"seq": None}, {"waits_for": 3}])
def test_a_heartbeat_of_the_wrong_type_is_refused(data):
    with pytest.raises(ProtocolError, match=r"heartbeat: .* cannot be read"):
        Heartbeat.from_json(data)


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([2], "rank 2"),
        ([3, 1, 0], "ranks 0, 1, 3"),
        ([0, 1, 2, 3], "ranks 0-3"),
        ([8, 0, 1, 2, 3, 4, 5, 6], "ranks 0-6, 8"),
    ],
)
def test_ranks_are_written_short(ranks, text):
    assert ranks_text(ranks) == text


@pytest.mark.parametrize(
    ("failure", "text"),
    [
        (
            Failure(2, "signal", host="a17", pid=123, signal=9, step=58),
            "rank 2 (host a17, pid 123) was killed by SIGKILL (signal 9) after step 58 or later",
        ),
        (Failure(0, "signal", signal=11), "rank 0 died of SIGSEGV (signal 11)"),
        (
            Failure(1, "exception", type="ValueError", message="no", step=3),
            "rank 1 raised ValueError after step 3: no",
        ),
        (Failure(1, "exit", exit_code=7), "rank 1 exited with code 7"),
        (
            Failure(1, "hang", message="no rank went on", step=3),
            "rank 1 did not go on: no rank went on",
        ),
    ],
)
def test_a_failure_is_described_in_one_line(failure, text):
    assert describe(failure) == text


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_words(kind):
    assert describe(Failure(0, kind, message="why")).startswith("rank 0 ")
    assert describe(Failure(0, kind, message="why")).endswith(": why")


def test_a_killed_rank_without_memory_says_so():
    assert "out of memory" in describe(Failure(0, "oom", signal=9))


def test_signals_without_a_name_are_numbers():
    assert signal_name(9) == "SIGKILL"
    assert signal_name(99) == "signal 99"


def test_equal_failures_are_folded():
    failures = [Failure(rank, "exception", type="KeyError", message="'a'") for rank in range(3)]
    groups = fold([*failures, Failure(3, "signal", signal=9)])
    assert [ranks for ranks, _ in groups] == [[0, 1, 2], [3]]


def test_consequences_are_folded_whatever_numbers_they_name():
    def echo(rank, **more):
        text = f"rank 1 has ended, while rank {rank} waited 1.{rank} s"
        return Failure(rank, "exception", type="RankLostError", message=text, **more)

    assert [ranks for ranks, _ in fold([echo(0, secondary=True), echo(2, secondary=True)])] == [
        [0, 2]
    ]
    assert len(fold([echo(0), echo(2)])) == 2
