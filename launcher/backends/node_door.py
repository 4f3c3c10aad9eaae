"""Where the nodes of a job come in: a port of node 0, behind the secret that all nodes share.

Whoever cannot prove the secret gets a greeting and nothing else, and disturbs nobody: each
connection has a thread and a limit of its own, and only so many are heard at a time.
"""

import contextlib
import errno
import os
import socket
import threading
from collections.abc import Callable
from typing import Protocol

from torch_xdist.launcher.connection import Connection
from torch_xdist.launcher.facts.errors import DuplicateJobError, HostError, LauncherError
from torch_xdist.launcher.sealed import as_head, as_node
from torch_xdist.launcher.tls import key_pair
from torch_xdist.system import addresses
from torch_xdist.system.frames import Message

_MEET_S = 10.0
_LOOK_S = 2.0
_MOST_AT_ONCE = 64
_MOST_NOTES = 20


class Admit(Protocol):
    """Takes a node that has proven the secret, or refuses it; on the thread of its connection."""

    def __call__(self, told: Message, line: Connection, address: str) -> None: ...


class Door:
    """Listens until it is closed.

    Args:
        name: the address that the nodes were given.
        warn: shows a line, about whoever was not let in.

    Raises:
        HostError: nothing can listen there.
        DuplicateJobError: that address is another machine's, and it leads this job.
    """

    def __init__(
        self,
        name: str,
        port: int,
        secret: bytes,
        job_id: str,
        admit: Admit,
        warn: Callable[[str], None],
    ) -> None:
        self._secret, self._job_id, self._admit, self._warn = secret, job_id, admit, warn
        self._told: set[tuple[str, str]] = set()
        self._turns = threading.Semaphore(_MOST_AT_ONCE)
        own = own_address_of(name)
        if not own and _is_led(name, port, secret):
            raise DuplicateJobError(
                f"node 0 is there already, at {name}:{port}; give every node its own --node-rank"
            )
        self._listener = _listening(own, port, name)
        self._pair = key_pair(warn)
        if not own:
            warn(f"{name} is no address of this machine; listening at all that it has")
        threading.Thread(target=self._accept, daemon=True, name="node-door").start()

    def close(self) -> None:
        """Nobody comes in any more."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            self._turns.acquire()
            try:
                sock, (address, *_) = self._listener.accept()
                address = address.removeprefix("::ffff:")
            except OSError as error:
                self._turns.release()
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ECONNABORTED):
                    threading.Event().wait(0.1)
                    continue
                return
            threading.Thread(target=self._meet, args=(sock, address), daemon=True).start()

    def _meet(self, sock: socket.socket, address: str) -> None:
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sealed = as_head(sock, self._secret, self._job_id, _MEET_S, self._pair)
            line = Connection.over(sock, sealed)
            self._admit(_introduced(line), line, address)
        except (LauncherError, OSError, ValueError) as error:
            sock.close()
            self.refused(address, str(error))
        finally:
            self._turns.release()

    def refused(self, address: str, why: str) -> None:
        """Tell it once, and not of more than a few: anybody can connect."""
        if (address, why) not in self._told and len(self._told) < _MOST_NOTES:
            self._told.add((address, why))
            self._warn(f"warning: a connection from {address} was refused: {why}")


def _introduced(line: Connection) -> Message:
    """The first message of a node; one that says nothing is not waited for."""
    try:
        first = line.first(_MEET_S)
        if first is None:
            raise HostError("it has hung up, or says nothing")
    except (OSError, ValueError):
        line.close()
        raise
    return first.message


def _is_led(name: str, port: int, secret: bytes) -> bool:
    """Whether somebody with our secret listens there."""
    try:
        with socket.create_connection((addresses.bare(name), port), _LOOK_S) as sock:
            as_node(sock, secret, _LOOK_S)
    except (LauncherError, OSError):
        return False
    return True


def own_address_of(name: str) -> str:
    """The address of this machine that a name leads to; "" where it leads elsewhere, or nowhere.

    Many machines know their own name as one of loopback, where no other machine finds them.
    """
    for found in addresses.of_name(name):
        is_near = found.startswith("127.") or found == "::1"
        if is_near and addresses.bare(name) not in (found, "localhost"):
            continue
        with contextlib.suppress(OSError), addresses.listener(found, 0, 1):
            return found
    return ""


def _listening(address: str, port: int, name: str) -> socket.socket:
    try:
        if address:
            return addresses.listener(address, port, 128)
        # All that it has, of both kinds.
        if socket.has_dualstack_ipv6():
            family = socket.AF_INET6
            return socket.create_server(("", port), family=family, backlog=128, dualstack_ipv6=True)
        return socket.create_server(("", port), backlog=128)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else error
        raise HostError(
            f"node 0 cannot listen on {name}:{port}: {why}; end what uses that port "
            "(another job?), or give all nodes another --master-port"
        ) from None
