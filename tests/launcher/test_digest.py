"""What an agent tells of the beats of its ranks, and what the head then knows."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from growth import is_linear

from torch_xdist.launcher.digest import Digest
from torch_xdist.launcher.facts.job import Job
from torch_xdist.launcher.head.sight import Clock, Sight


def beat(step: int = 1, state: str = "running", programs: int = 0, **more: Any) -> dict[str, Any]:
    recent = [[seq, f"program {seq}"] for seq in range(max(0, programs - 16), programs)]
    return {"step": step, "state": state, "seq": programs, "recent": recent, **more}


def sight_of(ranks: int) -> Sight:
    job = SimpleNamespace(
        ranks=lambda: range(ranks), shares=lambda: [ranks], job_id="j", device="CPU", nprocs=ranks
    )
    return Sight(cast(Job, job), 0, Clock())


def told(digest: Digest, beats: dict[int, dict[str, Any]], **states: str) -> dict[str, Any]:
    for rank, heartbeat in beats.items():
        digest.hear(rank, heartbeat, 0.0)
    return digest.take({int(name[1:]): letter for name, letter in states.items()})


def test_ranks_that_say_the_same_are_one_heartbeat() -> None:
    found = told(Digest(), {rank: beat(3) for rank in range(256)})
    assert found["beats"] == [[list(range(256)), beat(3)]] and found["same"] == []


def test_a_rank_that_says_what_it_has_said_before_is_only_alive() -> None:
    digest = Digest()
    told(digest, {0: beat(3), 1: beat(3)})
    found = told(digest, {0: beat(3), 1: beat(4)})
    assert (found["same"], found["beats"]) == ([0], [[[1], beat(4)]])
    assert told(digest, {})["beats"] == []


def test_only_programs_that_were_not_named_before_are_named() -> None:
    digest = Digest()
    told(digest, {0: beat(programs=16)})
    ((_, second),) = told(digest, {0: beat(2, programs=18)})["beats"]
    assert second["recent"] == [[16, "program 16"], [17, "program 17"]]


def test_the_state_of_a_process_is_told_when_it_is_another_one_that_is_worth_a_word() -> None:
    digest = Digest()
    assert told(digest, {}, r0="S", r1="R")["states"] == {}
    assert told(digest, {}, r0="T", r1="S")["states"] == {0: "T"}
    assert told(digest, {}, r0="T", r1="S")["states"] == {}
    assert told(digest, {}, r0="R", r1="S")["states"] == {0: ""}


def test_the_head_should_soon_hear_of_a_wait_for_others_and_of_a_compilation() -> None:
    digest = Digest()
    assert digest.hear(0, beat(1), 0.0)
    digest.take({})
    assert not digest.hear(0, beat(2), 1.0) and not digest.hear(0, beat(2, "waiting"), 1.0)
    assert digest.hear(0, beat(2, "waiting", waits_for=[1]), 1.0)
    assert digest.hear(1, beat(2, "compiling"), 1.0)


@pytest.mark.parametrize("heard_first", ["the wait", "the end"])
def test_a_wait_that_was_said_before_a_rank_finished_is_none_for_it(heard_first: str) -> None:
    """It came, ended, and was heard of before an older beat of its peer that stood in line."""
    digest, waits = Digest(), beat(2, "waiting", waits_for=[1, 2])
    if heard_first == "the wait":
        digest.hear(0, waits, 9.9)
    digest.finish(1, 10.0)
    if heard_first == "the end":
        digest.hear(0, waits, 9.9)
    ((_, found),) = digest.take({})["beats"]
    assert found["waits_for"] == [2] and found["state"] == "waiting"
    # Word of it may be on its way to the one that waits.
    digest.hear(0, waits, 10.4)
    assert digest.take({})["same"] == [0]
    digest.hear(0, waits, 10.6)
    ((_, found),) = digest.take({})["beats"]
    assert found["waits_for"] == [1, 2]


def test_the_head_knows_the_last_sixteen_programs_of_each_rank() -> None:
    digest, sight = Digest(), sight_of(2)
    for programs in (5, 12, 20):
        sight.take(told(digest, {0: beat(1, programs=programs), 1: beat(1, programs=3)}), b"")
    first, second = (seen.beat for seen in sight.ranks())
    assert first is not None and second is not None
    assert [seq for seq, _ in first.recent] == list(range(4, 20))
    assert [seq for seq, _ in second.recent] == [0, 1, 2]


def test_a_rank_that_says_the_same_again_has_not_changed_but_beats() -> None:
    digest, sight = Digest(), sight_of(1)
    sight.take(told(digest, {0: beat(1, programs=3)}), b"")
    before = sight.seen[0]
    sight.take(told(digest, {0: beat(1, programs=3)}), b"")
    after = sight.seen[0]
    assert after.changed_s == before.changed_s and after.last_beat_s >= before.last_beat_s
    assert after.beat == before.beat


def test_the_last_words_of_a_rank_name_all_its_programs() -> None:
    digest, sight = Digest(), sight_of(1)
    sight.take(told(digest, {0: beat(1, programs=3)}), b"")
    sight.take({"op": "finished", "rank": 0, "heartbeat": beat(2, programs=5)}, b"")
    seen = sight.seen[0].beat
    assert seen is not None and [seq for seq, _ in seen.recent] == [0, 1, 2, 3, 4]


def test_each_rank_adds_the_same_work_for_its_agent_and_the_head() -> None:
    def work_of(ranks: int) -> Any:
        digest, sight = Digest(), sight_of(ranks)
        heard = {rank: beat(1 + rank % 3, programs=4) for rank in range(ranks)}
        return lambda: sight.take(told(digest, heard), b"")

    assert is_linear(work_of)
