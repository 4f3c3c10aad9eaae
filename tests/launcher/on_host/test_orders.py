"""The orders of a rank, read by the thread of its heartbeat and then by the main thread."""

import socket
from collections.abc import Iterator

import pytest

from torch_xdist.launcher.on_host.orders import Orders
from torch_xdist.system.frames import Link


@pytest.fixture
def ends() -> Iterator[tuple[Link, Orders]]:
    ours, theirs = socket.socketpair()
    ours.settimeout(10.0)
    theirs.settimeout(10.0)
    link = Link(theirs)
    yield Link(ours), Orders(link)
    ours.close()
    theirs.close()


def test_a_release_that_came_before_the_rank_waits_for_it_is_not_lost(
    ends: tuple[Link, Orders],
) -> None:
    agent, orders = ends
    agent.send({"op": "release"})
    assert orders.look()
    orders.finish()
    orders.await_release()  # does not wait


def test_a_rank_that_waits_for_its_release_reads_alone_and_is_not_profiled(
    ends: tuple[Link, Orders],
) -> None:
    agent, orders = ends
    orders.finish()
    agent.send({"op": "profile", "id": "1", "seconds": 1, "python_calls": False})
    agent.send({"op": "release"})
    assert not orders.look()
    orders.await_release()
    told = agent.receive()
    assert told is not None and told.message == {
        "op": "profiled",
        "id": "1",
        "why": "it has finished, and waits for the other ranks",
    }


def test_an_agent_that_is_gone_gives_no_more_orders(ends: tuple[Link, Orders]) -> None:
    agent, orders = ends
    agent.close()
    assert not orders.look()
    orders.finish()
    orders.await_release()
