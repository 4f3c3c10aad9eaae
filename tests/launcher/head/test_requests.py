"""What is asked of a running job, once and again."""

from torch_xdist.launcher.head.requests import Requests


def test_a_second_request_of_the_same_source_is_without_grace() -> None:
    requests = Requests()
    for _ in range(2):
        requests.ask(2)
    assert requests.new() == [(2, False), (2, True)]


def test_nodes_that_are_told_at_once_have_asked_once() -> None:
    requests = Requests()
    requests.ask(15, source="node1")
    requests.ask(15)
    requests.ask(15, source="node2")
    assert requests.new() == [(15, False)]
    requests.ask(15, source="node2")
    assert requests.new() == [(15, True)]


def test_a_request_that_says_so_has_no_grace() -> None:
    requests = Requests()
    requests.ask(15, now=True)
    assert requests.new() == [(15, True)] and requests.wait()
