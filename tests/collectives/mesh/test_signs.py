"""Ranks give signs of life, with their newest launches, over a store kept in a dictionary."""

import time

import pytest
from pretend_store import PretendClient

from torch_xdist.collectives.mesh import key_value_store, signs
from torch_xdist.collectives.mesh.key_value_store import KeyValueStore
from torch_xdist.collectives.mesh.signs import Announced, Sign, Signs, every_s

ONE = Announced("digest", "MainThread", ("MainThread",), waits=False)


@pytest.fixture(autouse=True)
def often(monkeypatch):
    monkeypatch.setattr(signs, "LEAST_S", 0.02)


def wait_until(is_so):
    deadline = time.monotonic() + 20
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert is_so()


def test_a_rank_gives_signs_until_it_ends():
    rank = Signs(0, 2, KeyValueStore(PretendClient(), b"secret"))
    wait_until(lambda: rank.of(0).beat > 0)
    seen = rank.of(0).beat
    wait_until(lambda: rank.of(0).beat > seen)
    rank.close()
    assert rank.of(0).beat == -1
    assert rank.of(1) == Sign(0, {})


def test_a_service_that_is_away_for_a_while_does_not_stop_the_signs(monkeypatch):
    monkeypatch.setattr(key_value_store, "_PATIENCE_S", 0.05)
    client = PretendClient()
    rank = Signs(0, 2, KeyValueStore(client, b"secret"))
    client.failures += ["UNAVAILABLE: Connection reset"] * 8 + ["INTERNAL: what?"] * 3
    wait_until(lambda: not client.failures)
    seen = rank.of(0).beat
    wait_until(lambda: rank.of(0).beat > seen)
    rank.close()


def test_a_sign_names_the_newest_launches():
    rank = Signs(0, 2, KeyValueStore(PretendClient(), b"secret"))
    for number in range(20):
        rank.launched(number, ONE)
    wait_until(lambda: 19 in rank.of(0).launches)
    assert rank.of(0).launches == dict.fromkeys(range(12, 20), ONE)
    rank.close()


def test_launches_that_did_not_reach_the_service_are_told_again():
    client = PretendClient()
    put, refused = client.key_value_set_bytes, []

    def refuses_once(key, *rest):
        if not refused:
            refused.append(key)
            raise RuntimeError("INTERNAL: what?")
        put(key, *rest)

    client.key_value_set_bytes = refuses_once
    rank = Signs(0, 2, KeyValueStore(client, b"secret"))
    rank.launched(1, ONE)
    wait_until(lambda: rank.of(0).launches == {1: ONE})
    assert refused
    rank.close()


@pytest.mark.parametrize(("ranks", "seconds"), [(2, 0.5), (512, 0.5), (4096, 4.0), (65536, 20.0)])
def test_the_service_hears_of_a_large_job_more_seldom(monkeypatch, ranks, seconds):
    monkeypatch.setattr(signs, "LEAST_S", 0.5)
    assert every_s(ranks) == seconds
