"""Sentences about how ranks stand to each other, and when a job counts as stuck."""

from dataclasses import replace

import pytest

from torch_xdist.launcher.facts.records import Heartbeat
from torch_xdist.launcher.facts.settings import Timeouts
from torch_xdist.launcher.head.sight import Seen
from torch_xdist.launcher.head.standing import (
    Hang,
    RendezvousWatch,
    divergence,
    hang,
    left_early,
    standing,
)

T = Timeouts()
AT = "optimizer_step, train.py:77"


def seen(rank, state, step=58, seq=59, since_s=0.0, beat_s=1e9, **more):
    name = "all_reduce" if state == "waiting" else ""
    beat = Heartbeat(step, state, seq, name, AT if state == "waiting" else "")
    return Seen(rank, last_beat_s=beat_s, beat=beat, changed_s=since_s, **more)


def test_the_rank_that_left_is_named_before_those_that_wait():
    ranks = [seen(rank, "waiting") for rank in (0, 1, 3)]
    ranks.append(seen(2, "running", finished_s=3.0, exit_code=0))
    assert standing(ranks) == (
        f"rank 2 left the loop after step 58; ranks 0, 1, 3 wait in all_reduce #59 ({AT})"
    )


def test_every_state_has_its_words():
    ranks = [
        seen(0, "starting", step=0),
        seen(1, "running"),
        seen(2, "compiling", step=0),
        seen(3, "waiting"),
        replace(seen(4, "running"), state="stopped (T)"),
        Seen(5, exit_code=-9),
        Seen(6),
        Seen(7, beat=Heartbeat(where="data.py:10")),
        Seen(8, beat=Heartbeat(58, "waiting", 59, "all_reduce", waits_in="rendezvous 'saved'")),
    ]
    assert standing(ranks) == (
        "rank 5 has ended; rank 4 is stopped (T) after step 58; "
        "rank 7 has not come to its first step (data.py:10); "
        "rank 0 starts its device, where all ranks meet; "
        f"rank 1 is in step 59; rank 2 compiles for step 1; rank 3 waits in all_reduce #59 ({AT}); "
        "rank 8 waits in rendezvous 'saved'"
    )


def test_many_ranks_in_one_state_share_a_sentence():
    ranks = [seen(rank, "compiling", step=0) for rank in range(8)]
    assert standing(ranks) == "ranks 0-7 compile for step 1"
    ranks = [seen(rank, "starting", step=0) for rank in range(2)]
    assert standing(ranks) == "ranks 0, 1 start their device, where all ranks meet"
    assert standing([]) == ""


def test_a_job_that_goes_on_is_not_stuck():
    assert hang([seen(0, "running", since_s=95.0), seen(1, "waiting")], 100.0, T).level == "none"


def test_a_job_without_progress_is_warned_about_then_its_stacks_are_asked_for():
    ranks = [seen(0, "waiting"), seen(1, "running", seq=58), seen(2, "waiting")]
    assert hang(ranks, 59.0, T) == Hang("none", 59.0)
    warned = hang(ranks, 60.0, T)
    assert (warned.level, warned.behind) == ("warn", (1,))
    assert warned.sentence == (
        f"no rank went on for 60 s: rank 1 is in step 59; ranks 0, 2 wait in all_reduce #59 ({AT})"
    )
    assert hang(ranks, 300.0, T).level == "stacks"
    assert hang(ranks, 1e6, T).level == "stacks"


def test_a_stuck_job_is_killed_only_where_that_was_asked_for():
    asked = Timeouts(hang_kill_s=100.0)
    assert hang([seen(0, "waiting")], 100.0, asked).level == "kill"


def test_a_compiling_rank_is_no_hang_while_it_beats():
    ranks = [seen(0, "waiting", beat_s=999.0), seen(1, "compiling", beat_s=999.0)]
    assert hang(ranks, 1000.0, T).level == "none"


def test_a_rank_without_heartbeats_is_behind_whatever_it_said_last():
    ranks = [seen(0, "waiting", beat_s=999.0), seen(1, "compiling", beat_s=900.0)]
    judged = hang(ranks, 1000.0, T)
    assert (judged.level, judged.behind) == ("stacks", (1,))
    assert "(rank 1 sent no heartbeat)" in judged.sentence


def test_ranks_that_say_nothing_of_their_device_are_not_judged():
    assert hang([Seen(0), Seen(1)], 1e6, T) == Hang("none")
    outside = [Seen(rank, last_beat_s=1e6, beat=Heartbeat()) for rank in range(2)]
    assert hang(outside, 1e6, T) == Hang("none")


def test_a_rank_before_its_first_step_is_behind_those_that_wait_for_it():
    absent = Seen(1, last_beat_s=1e9, beat=Heartbeat(where="data.py:10"))
    judged = hang([seen(0, "waiting", step=0, seq=1), absent, seen(2, "starting", step=0)], 60, T)
    assert (judged.level, judged.behind) == ("warn", (1, 2))
    assert "rank 1 has not come to its first step (data.py:10); rank 2 starts" in judged.sentence


def test_a_job_in_which_all_ranks_wait_in_the_start_of_the_device_is_stuck():
    ranks = [seen(0, "starting", step=0), Seen(1, last_beat_s=1e9, beat=Heartbeat())]
    judged = hang(ranks, 400.0, Timeouts(hang_kill_s=300.0))
    assert (judged.level, judged.behind) == ("kill", (1,))


def test_a_rank_that_never_sent_a_heartbeat_is_behind():
    judged = hang([seen(0, "waiting", beat_s=99.0), Seen(1, last_beat_s=2.0)], 100.0, T)
    assert (judged.level, judged.behind) == ("warn", (1,))
    assert "(rank 1 sent no heartbeat)" in judged.sentence


def test_a_rank_that_nothing_was_heard_of_yet_has_not_been_silent_since_the_machine_started():
    assert hang([seen(0, "starting", since_s=99.0, beat_s=99.0), Seen(1)], 100.0, T).level == "none"


def test_a_rank_whose_line_changes_before_its_first_step_goes_on():
    busy = Seen(1, last_beat_s=1e9, beat=Heartbeat(where="data.py:10"), changed_s=99.0)
    assert hang([seen(0, "waiting"), busy], 100.0, T).level == "none"


# ---- who left early ----------------------------------------------------------------------------


def waits_for(rank, *others, host="a", beat_s=20.0, by_all=False, seq=59, waits_in=""):
    beat = Heartbeat(
        58, "waiting", seq, "all_reduce", AT, waits_for=others, by_all=by_all, waits_in=waits_in
    )
    return Seen(rank, last_beat_s=beat_s, beat=beat, changed_s=beat_s, host=host)


def left(rank, at_s=10.0, seq=58, host="a"):
    beat = Heartbeat(58, "running", seq)
    return Seen(rank, finished_s=at_s, exit_code=0, beat=beat, host=host)


@pytest.mark.parametrize("host", ["a", "b"])
def test_a_rank_that_others_wait_for_after_it_finished_has_left_for_certain(host):
    early = left_early([waits_for(0, 1), left(1, host=host)], 20.0)
    assert early is not None and early.is_certain and early.seen.rank == 1
    assert (
        early.sentence
        == f"rank 1 left the loop after step 58; rank 0 waits in all_reduce #59 ({AT})"
    )


def test_word_of_a_wait_may_have_been_under_way_between_hosts_while_the_rank_finished():
    assert left_early([waits_for(0, 1, beat_s=10.5), left(1, host="b")], 10.6) is None
    early = left_early([waits_for(0, 1, beat_s=10.5), left(1)], 10.6)
    assert early is not None and early.is_certain
    assert left_early([waits_for(0, 1, beat_s=9.9), left(1)], 10.6) is None


def test_the_data_of_a_collective_that_a_rank_has_left_may_be_under_way_between_hosts():
    """1 % of the packets were lost: the last all_reduce ended seconds later on the other host."""
    ranks = [waits_for(0, 1, beat_s=20.0, seq=58), left(1, seq=58, host="b")]
    assert left_early(ranks, 21.0) is None
    early = left_early(ranks, 23.0)
    assert early is not None and not early.is_certain and early.since_s == 20.0
    early = left_early([waits_for(0, 1, seq=58), left(1, seq=58)], 21.0)
    assert early is not None and early.is_certain


def test_a_call_that_is_no_collective_comes_after_the_last_one_of_a_rank_that_finished():
    ranks = [waits_for(0, 1, seq=58, waits_in="rendezvous 'end'"), left(1, seq=58, host="b")]
    early = left_early(ranks, 21.0)
    assert early is not None and early.is_certain


def test_a_wait_for_another_rank_is_not_certain():
    early = left_early([waits_for(0, 2), left(1), seen(2, "running")], 23.0)
    assert early is not None and not early.is_certain


def test_where_collectives_need_all_ranks_a_later_one_than_the_last_of_a_rank_is_certain():
    early = left_early([waits_for(0, by_all=True), left(1)], 20.0)
    assert early is not None and early.is_certain
    assert left_early([waits_for(0, by_all=True, seq=58), left(1)], 30.0) is None


# ---- programs that differ ----------------------------------------------------------------------

ONE, OTHER = (7, "all_reduce f32[3] (train.py:70)"), (7, "all_gather f32[3] (train.py:66)")


def at(rank, *recent, waits=True):
    beat = Heartbeat(state="waiting", recent=recent, waits_for=(1 - rank,) if waits else ())
    return Seen(rank, beat=beat)


def test_ranks_with_other_programs_that_wait_for_each_other_are_named():
    assert divergence([at(0, (6, "a"), ONE), at(1, (6, "a"), ONE)]) == ""
    assert divergence([at(0, (6, "a"), ONE), at(1, (6, "a"))]) == ""
    sentence = divergence([at(0, (6, "a"), ONE), at(1, (6, "a"), OTHER), at(2, ONE)])
    assert sentence.startswith(
        "the ranks' programs differ at collective #7: rank 1 runs all_gather f32[3] (train.py:66); "
        "ranks 0, 2 run all_reduce f32[3] (train.py:70); every rank must"
    )


def test_ranks_with_other_programs_are_not_accused_while_one_of_them_works():
    assert divergence([at(0, ONE), at(1, OTHER, waits=False)]) == ""
    assert divergence([at(0, ONE), at(1, OTHER), Seen(2)]) == ""
    assert divergence([]) == ""


def test_absent_ranks_are_named_ever_more_seldom_until_they_fail_the_job():
    notes = []
    watch = RendezvousWatch(4, 100.0, Timeouts(notice_s=10.0, rendezvous_s=300.0), notes.append)
    absent = {105: [0, 1, 2, 3], 110: [1, 3], 120: [1, 3], 140: [3], 399: [3]}
    assert [watch.look(ranks, at_s) for at_s, ranks in absent.items()] == [None] * 5
    assert notes == [
        "waiting for ranks 1, 3 of 4 to arrive",
        *["waiting for rank 3 of 4 to arrive"] * 2,
    ]
    late = watch.look([3], 400.0)
    assert (late.rank, late.kind, late.time) == (3, "launch", 400.0)
    assert late.message.startswith("rendezvous: rank 3 of 4 did not arrive in 300 s; look into")


def test_ranks_whose_code_is_on_its_way_have_their_time_from_its_last_word():
    notes = []
    watch = RendezvousWatch(4, 0.0, Timeouts(notice_s=3.0, rendezvous_s=5.0), notes.append)
    watch.went_on(4.0, lambda: "shipping /job to hosts a, b: 1 MB of 2 MB")
    assert watch.look([0, 1, 2, 3], 6.0) is None and notes == []
    assert watch.look([0, 1, 2, 3], 8.0) is None
    told = "ranks 0-3 of 4 (shipping /job to hosts a, b: 1 MB of 2 MB)"
    assert notes == [f"waiting for {told} to arrive"]
    assert f"{told} did not arrive in 5 s" in watch.look([0, 1, 2, 3], 9.0).message
    watch.went_on(8.5, str)
    assert watch.look([0], 13.0) is None
    assert "rank 0 of 4 did not arrive in 5 s" in watch.look([0], 13.5).message


def test_a_host_that_says_nothing_gets_no_more_time_by_code_on_its_way_to_others():
    watch = RendezvousWatch(2, 0.0, Timeouts(notice_s=9.0, rendezvous_s=5.0), [].append)
    watch.went_on(4.0, lambda: "shipping /job to host a: 1 MB of 2 MB")
    assert "(host b: no answer) did not arrive in 5 s" in watch.look([0, 1], 5.0, ["b"]).message


def test_a_host_that_has_not_answered_is_named_with_the_absent_ranks():
    notes = []
    watch = RendezvousWatch(4, 0.0, Timeouts(notice_s=1.0, rendezvous_s=5.0), notes.append)
    assert watch.look([2, 3], 2.0, ["b"]) is None
    assert notes == ["waiting for ranks 2, 3 of 4 (host b: no answer) to arrive"]
    late = watch.look([2, 3], 5.0, ["b", "c"])
    assert "ranks 2, 3 of 4 (hosts b, c: no answer) did not arrive in 5 s" in late.message
