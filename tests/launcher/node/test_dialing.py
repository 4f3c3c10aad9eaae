"""A node's way to node 0: what it waits for, and what it says meanwhile."""

import re
import socket
import threading
from collections.abc import Iterator

import pytest

from torch_xdist.launcher.facts.errors import AuthError, RendezvousError
from torch_xdist.launcher.facts.settings import Timeouts
from torch_xdist.launcher.node.dialing import Dialer
from torch_xdist.launcher.sealed import as_head

SECRET = b"s" * 32
SOON = Timeouts(rendezvous_s=0.8, notice_s=0.2)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


def dialer(where: tuple[str, int], notes: list[str], limits: Timeouts = SOON) -> Dialer:
    return Dialer(1, where, SECRET, limits, notes.append)


def test_a_name_that_does_not_resolve_yet_is_tried_again() -> None:
    notes: list[str] = []
    told = r"node 1: node 0 at nosuch\.invalid:29400 was not there in 1 s: the name does not res"
    with pytest.raises(RendezvousError, match=told):
        dialer(("nosuch.invalid", 29400), notes).connect()
    assert notes and notes[0].startswith(
        "node 1 waits for node 0 at nosuch.invalid:29400: the name"
    )


def test_a_name_may_resolve_later(monkeypatch: pytest.MonkeyPatch, listener: socket.socket) -> None:
    real, tries = socket.getaddrinfo, []

    def resolve(name: str, port: int, **more: int) -> list:
        tries.append(name)
        if len(tries) < 4:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return real("127.0.0.1", port, **more)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)

    def serve() -> None:
        sock, _ = listener.accept()
        as_head(sock, SECRET, "job", 5)
        sock.close()

    server = threading.Thread(target=serve)
    server.start()
    limits = Timeouts(rendezvous_s=20)
    sock, sealed = dialer(("node-0.job", listener.getsockname()[1]), [], limits).connect()
    server.join(10)
    sock.close()
    assert sealed.job_id == "job" and tries.count("node-0.job") == 4


def test_another_program_at_the_port_is_named(listener: socket.socket) -> None:
    def serve() -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            sock.sendall(b"SSH-2.0-OpenSSH_9.2" + b" " * 60)
            sock.close()

    server = threading.Thread(target=serve)
    server.start()
    told = re.escape("it is no xla-run: it says b'SSH-2.0-OpenSSH_'; start it, see that")
    with pytest.raises(RendezvousError, match=told):
        dialer(("127.0.0.1", listener.getsockname()[1]), []).connect()
    listener.shutdown(socket.SHUT_RDWR)
    server.join(10)


def test_another_secret_is_no_matter_of_time(listener: socket.socket) -> None:
    def serve() -> None:
        sock, _ = listener.accept()
        with sock, pytest.raises(AuthError):
            as_head(sock, b"o" * 32, "job", 5)

    server = threading.Thread(target=serve)
    server.start()
    with pytest.raises(AuthError, match="it refuses this node"):
        dialer(("127.0.0.1", listener.getsockname()[1]), [], Timeouts()).connect()
    server.join(10)


def test_it_can_be_told_to_stop() -> None:
    one = dialer(("nosuch.invalid", 29400), [], Timeouts())
    threading.Timer(0.2, one.stop).start()
    with pytest.raises(RendezvousError, match="was not there in 0 s"):
        one.connect()
