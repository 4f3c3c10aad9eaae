"""Addresses of both kinds as text."""

import socket

import pytest

from torch_xdist.system import addresses


@pytest.mark.parametrize(
    ("host", "text"), [("a", "a:7"), ("10.0.0.1", "10.0.0.1:7"), ("fd00::1", "[fd00::1]:7")]
)
def test_what_is_joined_is_split_again(host: str, text: str) -> None:
    assert addresses.joined(host, 7) == addresses.joined(addresses.bracketed(host), 7) == text
    assert addresses.split(text) == (host, 7)


def test_what_has_no_port_is_refused() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        addresses.split("a")


def test_a_server_listens_where_it_was_told() -> None:
    for address in ("127.0.0.1", "::1"):
        assert addresses.of_name(address) == [address]
        with addresses.listener(address, 0, 1) as server:
            port = server.getsockname()[1]
            socket.create_connection((address, port), 5).close()


def test_a_name_that_leads_nowhere_has_no_address() -> None:
    assert addresses.of_name("nowhere.invalid") == []
