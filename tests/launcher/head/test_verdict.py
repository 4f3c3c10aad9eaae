"""The verdict over a job, from plain facts: no clock, no process."""

from dataclasses import replace

import pytest
from growth import is_linear

from torch_xdist.launcher.facts.records import Failure, Heartbeat
from torch_xdist.launcher.facts.settings import Timeouts
from torch_xdist.launcher.head.sight import Seen
from torch_xdist.launcher.head.verdict import Done, Stop, Wait, exit_code_of, is_echo_text, judge

T = Timeouts()
ECHO = "UNKNOWN: Gloo all-reduce failed: Connection closed by peer [127.0.0.1]:4242"


def raised(rank, at_s, message="bad batch", kind="ValueError"):
    report = Failure(rank, "exception", type=kind, message=message, time=at_s, exit_code=1)
    return Seen(rank, exit_code=1, ended_s=at_s + 0.05, report=report)


def killed(rank, number, at_s, **more):
    return Seen(rank, exit_code=-number, ended_s=at_s, **more)


def running(rank, **more):
    return Seen(rank, **more)


def finished(rank, at_s, code=0, step=58, seq=58):
    beat = Heartbeat(step, "running", seq)
    return Seen(rank, exit_code=code, ended_s=at_s, finished_s=at_s, beat=beat)


def waiting(rank, since_s, step=58, seq=59, **more):
    beat = Heartbeat(step, "waiting", seq, "all_reduce", "optimizer_step, train.py:77", **more)
    return Seen(rank, last_beat_s=since_s, beat=beat, changed_s=since_s)


def root(verdict):
    assert isinstance(verdict, Stop)
    return verdict.failures[0].rank, verdict.failures[0].kind, verdict.exit_code


def test_running_ranks_are_waited_for():
    assert judge([running(0), running(1)], 100.0, T) == Wait()


def test_a_job_is_done_when_every_rank_said_so():
    assert judge([finished(0, 5.0), finished(1, 6.0)], 6.0, T) == Done()


def test_an_exception_is_blamed_at_once():
    assert root(judge([running(0), raised(1, 5.0)], 5.1, T)) == (1, "exception", 1)


@pytest.mark.parametrize("number", [9, 11, 7, 6])
def test_a_signal_is_blamed_with_its_code(number):
    verdict = judge([running(0), killed(1, number, 5.0)], 5.0, T)
    assert root(verdict) == (1, "signal", 128 + number)


@pytest.mark.parametrize("code", [1, 7, 9, 125])
def test_an_exit_code_is_the_jobs(code):
    verdict = judge([running(0), Seen(1, exit_code=code, ended_s=5.0)], 5.0, T)
    assert root(verdict) == (1, "exit", code)


def test_a_rank_that_ended_with_0_without_saying_that_it_finished_failed():
    verdict = judge([running(0), Seen(1, exit_code=0, ended_s=5.0)], 5.0, T)
    assert root(verdict) == (1, "exit", 1)
    assert "without saying that it finished" in verdict.failures[0].message


def test_a_kill_for_memory_is_called_so():
    verdict = judge([running(0), killed(1, 9, 5.0, oom=True)], 5.0, T)
    assert root(verdict) == (1, "oom", 137)


def test_the_exception_is_blamed_and_not_the_peers_that_lost_it():
    ranks = [raised(0, 5.3, ECHO, "JaxRuntimeError"), raised(1, 5.0), killed(2, 6, 5.4)]
    verdict = judge(ranks, 6.0, T)
    assert root(verdict) == (1, "exception", 1)
    assert [(f.rank, f.secondary, f.reason) for f in verdict.failures[1:]] == [
        (0, True, "it lost a peer"),
        (2, True, "it lost a peer"),
    ]


def test_a_killed_rank_is_blamed_and_not_the_echo_seen_first():
    ranks = [raised(0, 4.99, ECHO), killed(1, 9, 5.0), running(2)]
    assert root(judge(ranks, 5.1, T)) == (1, "signal", 137)


def test_an_exception_before_a_segfault_of_a_peer_is_the_cause():
    assert root(judge([killed(0, 11, 5.0), raised(1, 5.05)], 6.0, T)) == (1, "exception", 1)
    assert root(judge([killed(0, 11, 5.0), raised(1, 7.0)], 7.0, T)) == (0, "signal", 139)


def test_the_first_of_several_aborts_is_blamed():
    assert root(judge([killed(0, 6, 5.2), killed(1, 6, 5.0)], 6.0, T)) == (1, "signal", 134)


def test_an_abort_that_the_peers_give_as_their_reason_is_the_cause_though_seen_after_them():
    lost = "rank 2 (pid 77) has ended after all_reduce #4, while rank 0 waited 0.8 s in it"
    ranks = [raised(0, 5.0, lost), raised(1, 5.1, lost), killed(2, 6, 5.4)]
    verdict = judge(ranks, 5.5, T)
    assert root(verdict) == (2, "signal", 134)
    assert [failure.reason for failure in verdict.failures[1:]] == ["it lost a peer"] * 2


def test_an_abort_long_after_is_a_cause_of_its_own():
    ranks = [finished(0, 1.0), killed(1, 6, 30.0)]
    assert root(judge(ranks, 30.0, T)) == (1, "signal", 134)


def test_ranks_that_we_stopped_are_never_blamed():
    ranks = [killed(0, 9, 6.0, stopped=True), killed(1, 15, 6.0, stopped=True), raised(2, 5.0)]
    verdict = judge(ranks, 7.0, T)
    assert root(verdict) == (2, "exception", 1)
    assert len(verdict.failures) == 1


def test_the_same_exception_on_every_rank_is_no_consequence():
    verdict = judge(
        [raised(rank, 5.0 + rank / 10, "No module named 'x'") for rank in range(3)], 6, T
    )
    assert [failure.secondary for failure in verdict.failures] == [False, False, False]


def test_another_exception_afterwards_is_secondary_with_its_reason():
    verdict = judge([raised(0, 5.0), raised(1, 6.0, "cleanup failed")], 6.0, T)
    assert verdict.failures[1].reason == "rank 0 had failed before"


def test_an_echo_alone_is_not_blamed_before_the_cause_had_time_to_show():
    ranks = [raised(0, 5.0, ECHO), running(1)]
    assert judge(ranks, 5.2, T) == Wait()
    assert root(judge(ranks, 5.6, T)) == (0, "exception", 1)


def test_on_several_hosts_an_echo_waits_for_word_of_the_other_one():
    echo = replace(raised(0, 5.0, ECHO), host="a")
    assert judge([echo, running(1, host="b")], 6.9, T) == Wait()
    assert root(judge([echo, running(1, host="b")], 7.1, T)) == (0, "exception", 1)
    lost = Failure(1, "host_lost", host="b", message="its stream ended", time=6.5)
    assert root(judge([echo, running(1, host="b", report=lost)], 6.6, T)) == (1, "host_lost", 73)


def test_a_plain_command_that_prints_an_echo_is_an_echo():
    tail = ("Traceback ...", f"jax.errors.JaxRuntimeError: {ECHO}", "-----", "For simplicity, JAX")
    ranks = [Seen(0, exit_code=1, ended_s=5.0, tail=tail), killed(1, 9, 5.1)]
    assert root(judge(ranks, 6.0, T)) == (1, "signal", 137)


def test_a_rank_that_left_early_is_named_once_its_peers_wait():
    ranks = [waiting(0, 10.0), waiting(1, 10.0), finished(2, 9.5), waiting(3, 10.0)]
    assert judge(ranks, 10.5, T) == Wait()
    assert judge(ranks, 12.0, T) == Wait(
        (
            "rank 2 left the loop after step 58; ranks 0, 1, 3 wait in all_reduce #59 "
            "(optimizer_step, train.py:77)",
        )
    )


def test_a_rank_that_left_early_fails_the_job_at_the_exit_barrier():
    ranks = [waiting(0, 10.0), finished(1, 9.5)]
    assert isinstance(judge(ranks, 69.0, T), Wait)
    verdict = judge(ranks, 70.0, T)
    assert root(verdict) == (1, "early_exit", 1)
    assert verdict.failures[0].message.startswith(
        "rank 1 left the loop after step 58; rank 0 waits"
    )


def test_a_rank_that_left_although_others_wait_for_it_fails_the_job_at_once():
    ranks = [waiting(0, 11.0, waits_for=(1,)), finished(1, 9.5)]
    verdict = judge(ranks, 11.1, T)
    assert root(verdict) == (1, "early_exit", 1)
    assert verdict.failures[0].message.startswith("rank 1 left the loop after step 58; rank 0 wait")


def test_a_rank_that_left_early_is_blamed_for_the_first_failure_of_a_peer():
    ranks = [raised(0, 10.0, ECHO), finished(1, 9.5)]
    assert root(judge(ranks, 10.0, T)) == (1, "early_exit", 1)


def test_a_rank_that_left_early_is_blamed_with_where_its_peers_waited_when_all_have_ended():
    peers = [replace(waiting(rank, 10.0), exit_code=1, ended_s=20.0) for rank in (0, 2)]
    peers = [replace(seen, report=raised(seen.rank, 20.0, ECHO).report) for seen in peers]
    verdict = judge([peers[0], finished(1, 9.5), peers[1]], 30.0, T)
    assert root(verdict) == (1, "early_exit", 1)
    assert verdict.failures[0].message == (
        "rank 1 left the loop after step 58; ranks 0, 2 wait in all_reduce #59 "
        "(optimizer_step, train.py:77)"
    )


def test_a_rank_that_works_on_after_the_others_finished_is_waited_for():
    busy = Seen(0, beat=Heartbeat(58, "running", 58), changed_s=9.0)
    assert judge([busy, finished(1, 9.5)], 5000.0, T) == Wait()


def test_a_peer_that_waits_in_a_collective_all_have_passed_is_no_early_exit():
    ranks = [waiting(0, 10.0, seq=58), finished(1, 9.5, seq=58)]
    assert judge(ranks, 500.0, T) == Wait()


def test_a_slow_teardown_is_killed_with_a_warning_and_the_job_is_done():
    slow = Seen(1, finished_s=10.0)
    assert judge([finished(0, 9.0), slow], 69.0, T) == Wait()
    verdict = judge([finished(0, 9.0), slow], 70.0, T)
    assert verdict == Done(("rank 1 had finished, but not ended 60 s later: killed",))


@pytest.mark.parametrize(
    ("code", "words"), [(-6, "then died of SIGABRT"), (3, "then exited with code 3")]
)
def test_a_rank_that_dies_in_its_teardown_is_a_warning(code, words):
    verdict = judge([finished(0, 9.0), finished(1, 9.0, code)], 9.5, T)
    assert isinstance(verdict, Done)
    assert words in verdict.warnings[0]


@pytest.mark.parametrize(
    ("kind", "code"),
    [("hang", 76), ("pickle", 71), ("launch", 70)],
)
def test_kinds_of_ours_have_their_own_codes(kind, code):
    assert exit_code_of(Failure(0, kind, exit_code=3)) == code


def test_no_root_cause_gives_0():
    assert exit_code_of(Failure(0, "exit", exit_code=0)) == 1
    assert exit_code_of(Failure(0, "exception")) == 1


@pytest.mark.parametrize(
    "text",
    [
        ECHO,
        "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection reset by peer",
        "UNAVAILABLE: The coordination service has shut down",
        "ABORTED: /job:jax_worker/task:1 connected with a different incarnation",
        "NCCL error: remote process exited or there was a network error",
        "all_reduce #59: lost its peer, rank 2",
        "INTERNAL: RankLostError: rank 1 (pid 4145) has ended after all_reduce(sum) #4",
        "send: rank 3 has ended ([Errno 111] Connection refused), so rank 0 cannot send to it",
    ],
)
def test_what_ranks_say_of_a_lost_peer_is_an_echo(text):
    assert is_echo_text(text)


def test_a_network_error_of_the_script_is_its_own_and_no_echo():
    text = "ConnectionResetError: [Errno 104] Connection reset by peer"
    own = 'File "train.py", line 3, in fetch\n  File "/site/urllib3/response.py", line 9, in read'
    between_ranks = 'File "/site/jax/_src/interpreters/pxla.py", line 1300, in __call__'
    assert not is_echo_text(text, own)
    assert is_echo_text(text, between_ranks)
    s3 = replace(raised(0, 5.0, text).report, type="ConnectionResetError", traceback=own)
    ranks = [Seen(0, exit_code=1, ended_s=5.1, report=s3), raised(1, 5.3)]
    assert root(judge(ranks, 6.0, T)) == (0, "exception", 1)


@pytest.mark.parametrize(
    "text", ["ValueError: bad batch", "KeyError: 'peer'", "CUDA out of memory", "loss is nan"]
)
def test_a_users_own_error_is_no_echo(text):
    assert not is_echo_text(text)


def lost(rank, at_s):
    return Seen(rank, report=Failure(rank, "host_lost", message="no word", time=at_s, host="b"))


def test_a_lost_host_is_blamed_and_not_what_its_peers_say():
    echo = raised(0, 9.0, ECHO, "XlaRuntimeError")
    verdict = judge([echo, running(1), lost(2, 10.0), lost(3, 10.0)], 10.0, T)
    assert root(verdict) == (2, "host_lost", 73)
    assert [(failure.rank, failure.secondary) for failure in verdict.failures] == [
        *((2, False), (0, True), (3, False)),
    ]


def test_an_exception_before_the_loss_of_a_host_is_blamed():
    assert root(judge([raised(0, 9.9), lost(1, 10.0)], 10.0, T)) == (0, "exception", 1)


def test_echoes_wait_while_a_host_may_be_lost():
    ranks = [raised(0, 5.0, ECHO, "XlaRuntimeError"), running(1)]
    assert judge(ranks, 9.0, T, in_doubt=True) == Wait()
    assert root(judge(ranks, 9.0, T)) == (0, "exception", 1)


def test_ranks_that_are_told_to_end_with_a_host_that_is_lost_are_not_blamed():
    ranks = [killed(0, 15, 9.0, host="a"), killed(1, 15, 9.1, host="a"), lost(2, 10.0)]
    verdict = judge(ranks, 10.0, T)
    assert root(verdict) == (2, "host_lost", 73)
    assert {failure.reason for failure in verdict.failures[1:]} == {"a host was taken away"}


def test_a_rank_that_was_told_to_end_long_before_a_host_was_lost_is_blamed():
    ranks = [killed(0, 15, 5.0, host="a"), lost(1, 10.0)]
    assert root(judge(ranks, 10.0, T)) == (0, "signal", 143)


def test_sigterm_that_is_not_ours_waits_for_the_loss_of_a_host_where_there_are_several():
    told, other = killed(0, 15, 9.0, host="a"), running(1, host="b")
    assert judge([told, other], 10.0, T) == Wait()
    assert root(judge([told, other], 11.1, T)) == (0, "signal", 143)
    assert root(judge([told, running(1, host="a")], 9.0, T)) == (0, "signal", 143)


LOST_PEERS = {
    "exceptions": lambda n: [raised(rank, 5.0 + rank / 1e3) for rank in range(n)],
    "aborts": lambda n: [raised(0, 5.0), *(killed(rank, 6, 5.4) for rank in range(1, n))],
    "told to end": lambda n: [killed(rank, 15, 5.0) for rank in range(n)],
    "all wait for those that left": lambda n: [
        finished(rank, 5.0) if rank % 2 else waiting(rank, 5.2, waits_for=(1, 3))
        for rank in range(n)
    ],
}


@pytest.mark.parametrize("ranks_of", LOST_PEERS.values(), ids=LOST_PEERS)
def test_each_rank_is_looked_at_a_number_of_times_that_the_others_do_not_raise(ranks_of):
    def work_of(ranks):
        seen = ranks_of(ranks)
        return lambda: judge(seen, 9.0, T)

    assert is_linear(work_of)
