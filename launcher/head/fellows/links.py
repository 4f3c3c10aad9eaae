"""What the heads of a job say to each other where every host has a head of its own.

No launcher leads such a job: the script was started once on every host. Host 0 listens until all
are there, the others dial it, and it passes on what one says to all others. Nothing is ordered
here and nothing is unpickled: hosts tell that they are there, where the ranks meet, that theirs
have finished, and how it ended. Who is heard is decided before that (`entrance`). The connections
are not encrypted.

A thread owns the sockets; what is heard is posted, as {"op": "fellow", "say": ..., "host": ...}.
"""

import contextlib
import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch_xdist.launcher.facts.cluster import HostOfMany
from torch_xdist.launcher.facts.errors import HostError, LauncherError
from torch_xdist.launcher.facts.settings import OFF
from torch_xdist.launcher.head.fellows.entrance import Entrance, Silent, dialed
from torch_xdist.system.errors import FrameError
from torch_xdist.system.frames import Link, Message

VERSION = 1
_MOST_STRANGERS = 64
_STRANGER_S = 10.0
_PORT_S = 5.0
_REDIAL_S = 0.25
_SILENCES = 3
_CLOSE_S = 2.0
_LOOK_S = 60.0
_SAYS = ("here", "present", "meet", "finished", "over", "beat")


@dataclass
class _Peer:
    """A connection; `host` is None until it has said who it is."""

    link: Link
    host: int | None = None
    heard_s: float = field(default_factory=time.monotonic)


class FellowLinks:
    """The connections of this host to the others.

    Args:
        hello: what must be the same on all hosts.
        post: called on our thread with everything that is heard.
        beat_s: how often to say that we live.
        lost_s: who says nothing for so long is lost.
        secret: what all hosts know; b"": nothing.

    Raises:
        HostError: host 0 cannot listen where the others look for it.
    """

    def __init__(
        self,
        part: HostOfMany,
        hello: Message,
        post: Callable[[Message], None],
        beat_s: float,
        lost_s: float,
        secret: bytes = b"",
    ) -> None:
        self._part, self._hello, self._post = part, hello, post
        self._beat_s, self._lost_s, self._secret = beat_s, lost_s, secret
        self._entrance = Entrance(part, secret, self._let_in, self._warn)
        self._believed: deque[Link] = deque()
        self._silences = 0
        self._selector = selectors.DefaultSelector()
        self._peers: dict[int, _Peer] = {}
        self._over: set[int] = set()
        self._is_whole = self._is_closing = False
        self._next_beat_s = 0.0
        self._dial_at_s = 0.0
        self._queue: deque[Message] = deque()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._wake_read, selectors.EVENT_READ, None)
        self._listener = _listener(part) if part.host_index == 0 else None
        if self._listener is not None:
            self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._thread = threading.Thread(target=self._run, name="xla-run-fellows", daemon=True)
        self._thread.start()

    def say(self, message: Message) -> None:
        """Tell all other hosts."""
        self._queue.append({**message, "host": self._part.host_index})
        self._wake()

    def _let_in(self, link: Link) -> None:
        self._believed.append(link)
        self._wake()

    def _warn(self, text: str) -> None:
        self._post({"op": "note", "text": text})

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._wake_write, b"\0")

    def close(self) -> None:
        """What was said goes out first."""
        self._is_closing = True
        self._wake()
        self._thread.join(_CLOSE_S)

    # ---- the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        while not (self._is_closing and not self._queue):
            self._dial()
            for key, _ in self._selector.select(self._wait_s()):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.data is not None:
                    self._read(key.data)
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_read, 4096)
            while self._believed:
                self._hear_out(self._believed.popleft())
            while self._queue:
                self._tell(self._queue.popleft())
            self._keep_time()
        for peer in list(self._peers.values()):
            self._forget(peer)
        self._stop_listening()
        self._selector.close()

    def _wait_s(self) -> float:
        at_s = self._next_beat_s
        if self._part.host_index and not self._peers:
            at_s = min(at_s, self._dial_at_s)
        # No duration is too long for a selector then, and "off" is none.
        return min(max(0.0, at_s - time.monotonic()), self._lost_s / 4, _LOOK_S)

    def _dial(self) -> None:
        """Where there is no connection to host 0 yet: try again."""
        now_s = time.monotonic()
        if not self._part.host_index or self._peers or self._is_whole or now_s < self._dial_at_s:
            return
        self._dial_at_s = now_s + _REDIAL_S
        try:
            link = dialed(self._part, self._secret)
        except Silent as error:
            self._silences += 1
            if self._silences >= _SILENCES:
                self._give_up(
                    f"{error}; perhaps XLA_RUN_SECRET is not set there; set the same on all hosts"
                )
            return
        except LauncherError as error:
            self._give_up(str(error))
            return
        if link is not None:
            peer = self._add(link)
            peer.host = 0
            peer.link.send({**self._hello, "say": "here", "host": self._part.host_index})

    def _give_up(self, why: str) -> None:
        """Host 0 is there, and is not believed, or does not believe us."""
        self._is_whole = True  # nobody is dialed any more
        where = f"{self._part.master_addr}:{self._part.master_port}"
        text = f"{self._part.called(0)} at {where}: {why}"
        self._post({"op": "fellow", "say": "over", "exit_code": 73, "text": text, "host": 0})

    def _accept(self) -> None:
        assert self._listener is not None
        with contextlib.suppress(OSError):
            sock, (address, *_) = self._listener.accept()
            self._entrance.meet(sock, address)

    def _hear_out(self, link: Link) -> None:
        strangers = sum(peer.host is None for peer in self._peers.values())
        if self._listener is not None and strangers < _MOST_STRANGERS:
            self._add(link)
        else:
            link.close()

    def _add(self, link: Link) -> _Peer:
        sock = link.sock
        # A look at one with a timeout would wait.
        sock.settimeout(None)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._lost_s < OFF:
            limit_ms = round(self._lost_s * 1000)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, limit_ms)
        peer = _Peer(link)
        self._peers[sock.fileno()] = peer
        self._selector.register(sock, selectors.EVENT_READ, peer)
        return peer

    def _forget(self, peer: _Peer) -> None:
        self._selector.unregister(peer.link.sock)
        del self._peers[peer.link.fileno()]
        peer.link.close()

    def _read(self, peer: _Peer) -> None:
        if self._peers.get(peer.link.fileno()) is not peer:
            return
        try:
            frames, is_open = peer.link.read_ready()
        except FrameError:
            frames, is_open = [], False
            if peer.host == 0 and not self._is_whole:
                self._give_up(
                    "it speaks otherwise than this host; perhaps XLA_RUN_SECRET is set there "
                    "alone; set the same on all hosts"
                )
        for frame in frames:
            peer.heard_s = time.monotonic()
            try:
                is_open = self._hear(peer, frame.message) and is_open
            except (KeyError, TypeError, ValueError):
                is_open = False  # it is none of us
        if not is_open:
            self._lose(peer, "its connection ended")

    def _hear(self, peer: _Peer, message: Message) -> bool:
        """What a peer says; False where the connection is of no use."""
        say = message["say"]
        if say not in _SAYS:
            return False
        if peer.host is None:
            return say == "here" and self._admit(peer, message)
        if say == "beat":
            return True
        host = int(message["host"])
        # Host 0 passes on what others say.
        if self._part.host_index == 0:
            host = peer.host
            self._tell({**message, "host": host}, but=peer)
        if say == "present":
            self._is_whole = len(message["hosts"]) == self._part.hosts
        if say == "over":
            self._over.add(host)
        self._post({**message, "op": "fellow", "host": host})
        return True

    def _admit(self, peer: _Peer, message: Message) -> bool:
        """Host 0 takes another one in, or says why not."""
        host = int(message["host"])
        present = self._present()
        if not 0 < host < self._part.hosts or host in present:
            return False
        if why := _difference(self._hello, message, self._part.called(host)):
            refusal = {"say": "over", "exit_code": 71, "text": why}
            peer.link.send({**refusal, "host": 0})
            self._post({**refusal, "op": "fellow", "host": host})
            return False
        peer.host = host
        self._tell_present()
        return True

    def _present(self) -> list[int]:
        return sorted([0, *(peer.host for peer in self._peers.values() if peer.host)])

    def _tell_present(self) -> None:
        hosts = self._present()
        if len(hosts) == self._part.hosts:
            self._is_whole = True
            self._stop_listening()
        news = {"say": "present", "hosts": hosts, "host": 0}
        self._tell(news)
        self._post({**news, "op": "fellow"})

    def _stop_listening(self) -> None:
        """Who comes later belongs to another job."""
        if self._listener is not None:
            self._selector.unregister(self._listener)
            self._listener.close()
            self._listener = None

    def _lose(self, peer: _Peer, why: str) -> None:
        self._forget(peer)
        if peer.host is None:
            return
        if self._is_whole or peer.host in self._over:
            self._post({"op": "fellow", "say": "left", "host": peer.host})
        if peer.host in self._over:
            return
        if self._is_whole:
            self._over.add(peer.host)
            lost = {"say": "over", "exit_code": 73, "lost": why, "host": peer.host}
            self._post({**lost, "op": "fellow"})
            if self._part.host_index == 0:
                self._tell(lost)
        elif self._part.host_index == 0:
            self._tell_present()
        else:
            self._post({"op": "fellow", "say": "present", "hosts": [], "host": 0})

    def _tell(self, message: Mapping[str, Any], but: _Peer | None = None) -> None:
        for peer in self._peers.values():
            if peer.host is not None and peer is not but:
                peer.link.send(message)

    def _keep_time(self) -> None:
        now_s = time.monotonic()
        if now_s >= self._next_beat_s:
            self._next_beat_s = now_s + self._beat_s
            self._tell({"say": "beat"})
        for peer in list(self._peers.values()):
            if peer.host is None and now_s - peer.heard_s > _STRANGER_S:
                self._forget(peer)
            elif now_s - peer.heard_s > self._lost_s:
                self._lose(peer, f"no word from it for {self._lost_s:g} s")


def _difference(ours: Message, theirs: Message, name: str) -> str:
    """Why two hosts are not of one job; "" where they are."""
    if theirs["version"] != ours["version"]:
        return f"{name} has another release of torch-xdist; install the same on all hosts"
    for key, what in (("hosts", "hosts"), ("ranks", "ranks on it"), ("device", "as its device")):
        if theirs[key] != ours[key]:
            return (
                f"{name} counts {theirs[key]!s:.20} {what}, host 0 {ours[key]}; the script must "
                "be started alike on all hosts"
            )
    return ""


def _listener(part: HostOfMany) -> socket.socket:
    """Where the others look for host 0; its last job may just be letting go of the port."""
    end_s = time.monotonic() + _PORT_S
    while True:
        try:
            found = socket.getaddrinfo(part.master_addr, part.master_port, type=socket.SOCK_STREAM)
            family, _, _, _, address = found[0]
            return socket.create_server(address[:2], family=family, backlog=part.hosts + 128)
        except OSError as error:
            if time.monotonic() < end_s:
                time.sleep(_REDIAL_S)
                continue
            raise HostError(
                f"{part.called(0)} cannot listen at {part.master_addr}:{part.master_port}, where "
                f"the other hosts of {part.launcher} look for it ({error.strerror or error}); set "
                "MASTER_ADDR to an address of it, or MASTER_PORT to a port that is free, on all "
                "hosts"
            ) from error
