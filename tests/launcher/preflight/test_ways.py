"""Ports and the ways to them, over loopback."""

import contextlib
import socket
import time
from collections.abc import Iterator

import pytest

from torch_xdist.launcher.on_host.coordinator import free_port
from torch_xdist.launcher.preflight import ways

HERE = "127.0.0.1"
TOKEN = ways.new_token()


@pytest.fixture(scope="module")
def place() -> Iterator[ways.Address]:
    yield HERE, ways.Listener(HERE, TOKEN).ports[0]


def test_a_host_listens_as_the_meeting_place_does_and_as_sockets_of_ranks_do() -> None:
    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        first, last = map(int, file.read().split())
    meeting, own = ways.Listener(HERE, TOKEN).ports
    assert not first <= meeting <= last and first <= own <= last


def test_every_way_is_tried(place: ways.Address) -> None:
    closed = (HERE, free_port())
    found = ways.reach({1: [place], 2: [place, closed], 5: [closed]}, 3.0)
    assert found[1]["ms"] > 0
    assert found[2] == found[5] == {"why_not": "Connection refused", "port": closed[1]}


def test_a_way_into_nowhere_is_given_up() -> None:
    with socket.create_server((HERE, 0), backlog=0) as full, contextlib.ExitStack() as opened:
        for _ in range(4):
            sock = opened.enter_context(socket.socket())
            sock.setblocking(False)
            sock.connect_ex(full.getsockname())
        since_s = time.monotonic()
        (found,) = ways.reach({1: [full.getsockname()]}, 0.5).values()
    assert found["why_not"] == "timed out" and time.monotonic() - since_s < 15


def test_a_rate_is_measured_in_both_directions(place: ways.Address) -> None:
    since_s = time.monotonic()
    found = ways.rate(place, TOKEN, 0.2)
    assert 0.2 <= time.monotonic() - since_s < 15
    assert 0 < found["round_trip_ms"] < 1000
    assert min(found["there_bytes_per_s"], found["back_bytes_per_s"]) > 1e6


def test_nobody_without_the_token_is_served(place: ways.Address) -> None:
    found = ways.rate(place, ways.new_token(), 0.1)
    assert found["why_not"] in (
        "the other side has closed the connection",
        "Connection reset by peer",
    )


def test_an_address_of_another_machine_cannot_be_listened_at() -> None:
    with pytest.raises(OSError, match="Cannot assign requested address"):
        ways.Listener("192.0.2.7", TOKEN)


def test_a_port_that_is_closed_has_no_rate() -> None:
    assert ways.rate((HERE, free_port()), TOKEN, 0.1) == {"why_not": "Connection refused"}
