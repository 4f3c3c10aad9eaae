"""Sentences about how ranks stand to each other, and when a job counts as stuck."""

from dataclasses import replace

from torch_xdist.launcher.progress import Hang, Seen, divergence, hang, standing
from torch_xdist.launcher.records import Progress
from torch_xdist.launcher.settings import Timeouts

T = Timeouts()
AT = "optimizer_step, train.py:77"


def seen(rank, state, step=58, seq=59, since_s=0.0, beat_s=1e9, **more):
    name = "all_reduce" if state == "waiting" else ""
    progress = Progress(step, state, seq, name, AT if state == "waiting" else "")
    return Seen(rank, last_beat_s=beat_s, progress=progress, changed_s=since_s, **more)


def test_the_rank_that_left_is_named_before_those_that_wait():
    ranks = [seen(rank, "waiting") for rank in (0, 1, 3)]
    ranks.append(seen(2, "left", finished_s=3.0, exit_code=0))
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
    ]
    assert standing(ranks) == (
        "rank 5 has ended; rank 4 is stopped (T) after step 58; rank 0 is starting; "
        f"rank 1 is in step 59; rank 2 compiles for step 1; rank 3 waits in all_reduce #59 ({AT})"
    )


def test_many_ranks_in_one_state_share_a_sentence():
    ranks = [seen(rank, "compiling", step=0) for rank in range(8)]
    assert standing(ranks) == "ranks 0-7 compile for step 1"
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


def test_ranks_that_say_nothing_are_not_judged():
    assert hang([Seen(0), Seen(1)], 1e6, T) == Hang("none")


def test_ranks_with_other_programs_are_named_before_they_hang():
    def at(rank, *recent):
        return Seen(rank, progress=Progress(recent=recent))

    one, other = (7, "all_reduce f32[3] (train.py:70)"), (7, "all_gather f32[3] (train.py:66)")
    assert divergence([at(0, (6, "a"), one), at(1, (6, "a"), one)]) == ""
    assert divergence([at(0, (6, "a"), one), at(1, (6, "a")), Seen(2)]) == ""
    sentence = divergence([at(0, (6, "a"), one), at(1, (6, "a"), other), at(2, one)])
    assert sentence.startswith(
        "the ranks' programs differ at collective #7: rank 1 runs all_gather f32[3] (train.py:66); "
        "ranks 0, 2 run all_reduce f32[3] (train.py:70); every rank must"
    )
