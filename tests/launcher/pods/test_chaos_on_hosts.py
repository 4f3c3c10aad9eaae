"""Random faults in training jobs over several hosts: a few of them always, a hundred on demand.

`python tests/chaos_hosts.py --rounds 1 --seed N` makes the round of N again.
"""

import subprocess
import sys
from pathlib import Path

import chaos_plans
import pod
import pytest

CHAOS = Path(__file__).parents[2] / "chaos_hosts.py"


def ends_as_it_should(rounds: int, seed: int, minutes: float) -> None:
    if why := pod.missing():
        pytest.skip(why)
    words = [sys.executable, str(CHAOS), "--rounds", str(rounds), "--seed", str(seed)]
    words += ["--minutes", str(minutes), "--keep-going"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60 * minutes + 120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f": {rounds} rounds, 0 not as they should be" in done.stdout, done.stdout


def test_two_faults_over_hosts_end_as_they_should() -> None:
    """An ssh that is made anew, and a head of nodes that is killed."""
    ends_as_it_should(rounds=2, seed=22, minutes=3)


@pytest.mark.long
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("seed", range(1401, 1501, 10))
def test_a_hundred_random_faults_over_hosts_end_as_they_should(seed: int) -> None:
    """Ten rounds each: the numbers are fixed, so that a round which fails fails again."""
    ends_as_it_should(rounds=10, seed=seed, minutes=20)


def test_the_number_of_a_round_draws_all_of_it() -> None:
    assert [chaos_plans.draw(seed) for seed in range(50)] == [
        chaos_plans.draw(seed) for seed in range(50)
    ]


def test_rounds_come_to_every_kind_of_fault_on_every_host() -> None:
    plans = [chaos_plans.draw(seed) for seed in range(1500)]
    found = {(plan.way, fault.kind.name) for plan in plans for fault in plan.faults}
    assert found == {(way, kind.name) for kind in chaos_plans.KINDS for way in kind.ways}
    assert {fault.host for plan in plans for fault in plan.faults} == {0, 1, 2}


def test_a_fault_that_ends_no_job_allows_no_code_but_0() -> None:
    for seed in range(200):
        plan = chaos_plans.draw(seed)
        if all(fault.kind.codes == (0,) for fault in plan.faults):
            assert plan.codes() == {0}, plan


def test_a_killed_agent_of_node_0_is_made_up_for_like_that_of_another() -> None:
    assert chaos_plans.draw(3013).codes() == {73}
    assert chaos_plans.draw(3599).codes() == {0}


def test_a_cut_link_that_another_fault_mends_may_be_no_end() -> None:
    assert 0 in chaos_plans.draw(1785).codes()
