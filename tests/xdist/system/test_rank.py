"""One record of a rank: into the environment and back, under every launcher that sets RANK."""

import pytest

from torch_xdist.system import rank
from torch_xdist.system.errors import RankError
from torch_xdist.system.rank import Rank, from_environ

OURS = Rank(
    rank=3,
    world_size=4,
    local_rank=1,
    local_world_size=2,
    host_index=1,
    hosts=2,
    master_addr="10.0.0.1",
    master_port=1234,
    job_id="j1",
    attempt=2,
    max_restarts=5,
    log_dir="/logs",
    error_file="/logs/rank-3.error.json",
    control="tcp:1",
    coordinator="10.0.0.1:99",
    task="script",
    launcher="xla-run",
    secret=b"\x01\x02" * 8,
)


def test_a_rank_reads_what_was_written():
    assert from_environ(OURS.to_environ()) == OURS


def test_an_ordinary_process_is_no_rank():
    for environ in ({}, {"RANK": "3"}, {"RANK": "", "WORLD_SIZE": "2"}, {"XLA_RUN_JOB_ID": "j"}):
        found = from_environ(environ)
        assert found == Rank() and not found.is_rank and not found.serves_coordinator


def test_without_the_variables_of_a_rank_a_process_is_none():
    environ = OURS.to_environ()
    for name in rank.RANK_VARIABLES:
        environ.pop(name, None)
    assert from_environ(environ) == Rank()
    assert not [name for name in environ if not name.startswith("XLA_RUN")]


def test_torchruns_names_are_enough():
    environ = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "1"}
    elastic = {**environ, "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "7"}
    assert from_environ(environ) == Rank(1, 4, 1, 2, hosts=2, launcher="the environment (RANK)")
    found = from_environ(elastic)
    assert (found.launcher, found.job_id, found.attempt) == ("torchrun", "none", 7)


def test_a_worker_of_ray_train_is_on_the_host_that_it_names():
    """As Ray 2.60 sets them in a TorchTrainer's workers; a host filled one after the other else."""
    environ = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    assert from_environ({**environ, "NODE_RANK": "0"}).host_index == 0
    assert from_environ({**environ, "NODE_RANK": "1"}).host_index == 1
    assert from_environ({**environ, "NODE_RANK": "0", "GROUP_RANK": "1"}).host_index == 1
    assert from_environ(environ).host_index == 1


def test_a_torchrun_inside_one_of_our_jobs_is_torchrun():
    nested = {**OURS.to_environ(), "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "1"}
    found = from_environ(nested)
    assert (found.launcher, found.attempt, found.control) == ("torchrun", 1, "")


def test_a_rank_without_a_local_rank_is_on_the_only_host():
    found = from_environ({"RANK": "1", "WORLD_SIZE": "2"})
    assert (found.local_rank, found.local_world_size, found.hosts) == (1, 2, 1)


def test_two_jobs_of_one_name_meet_in_different_places():
    places = {
        Rank(job_id="none", master_port=port, attempt=attempt).meeting
        for port in (0, 29500, 29501)
        for attempt in (0, 1)
    }
    assert len(places) == 6


def test_the_coordinator_is_beside_the_master_port_where_nobody_names_one():
    assert OURS.coordinator_address == "10.0.0.1:99" and not OURS.serves_coordinator
    first = Rank(launcher="torchrun", master_port=29500)
    assert first.coordinator_address == "127.0.0.1:29501" and first.serves_coordinator
    assert Rank(master_port=65535).coordinator_address == "127.0.0.1:65534"


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"RANK": "x"}, "RANK: 'x' is no whole number from 0 up; correct or unset it"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE: '0' is no whole number from 1 up"),
        ({"RANK": "4"}, "xla-run: rank 4 of 4; an index below the count is needed"),
        ({"LOCAL_RANK": "2"}, "local rank 2 of 2"),
        ({"GROUP_RANK": "2"}, "host 2 of 2"),
        ({"XLA_RUN_SECRET": "0g" * 16}, "XLA_RUN_SECRET: 32 hexadecimal digits or more are needed"),
        ({"XLA_RUN_SECRET": "ab" * 15}, "XLA_RUN_SECRET: 32 hexadecimal digits or more are needed"),
        ({"XLA_RUN_SECRET": "a" * 33}, "an even number of them; make some"),
    ],
)
def test_variables_that_name_no_possible_rank_are_refused(changed, words):
    with pytest.raises(RankError, match=words):
        from_environ({**OURS.to_environ(), **changed})


def test_a_secret_is_not_shown():
    assert "\\x01" not in repr(OURS) and "secret" not in repr(OURS)
