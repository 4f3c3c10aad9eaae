"""Where the agent of another host can be found again when its connection has ended.

It listens at a name in Linux's abstract namespace: no file is made, so a full disk does not matter
and nothing is left. Only a process of the same user is heard (`relay`), and what it passes on must
begin with the secret that the head gave with its first message, over the connection that ended.
"""

import contextlib
import hmac
import os
import socket
import threading
from collections.abc import Mapping
from typing import Any

from torch_xdist.launcher.connection import Connection
from torch_xdist.launcher.facts.errors import HostError
from torch_xdist.launcher.pipe_stream import PipeStream
from torch_xdist.launcher.resuming import Granting
from torch_xdist.system.errors import FrameError
from torch_xdist.system.process import credentials

_FIRST_S = 10.0
_MOST_AT_ONCE = 16


class Resumption:
    """Listens for as long as this process lives.

    Args:
        name: where it is found.
        secret: which whoever comes must say.

    Raises:
        OSError: it cannot listen there.
    """

    def __init__(self, name: str, secret: str, stream: PipeStream) -> None:
        self._secret, self._granting = secret, Granting(stream)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(f"\0{name}")
        self._listener.listen(_MOST_AT_ONCE)
        self._turns = threading.Semaphore(_MOST_AT_ONCE)
        threading.Thread(target=self._accept, daemon=True, name="resumption").start()

    def _accept(self) -> None:
        while True:
            self._turns.acquire()
            try:
                sock, _ = self._listener.accept()
            except OSError:
                self._turns.release()
                threading.Event().wait(0.1)
                continue
            threading.Thread(target=self._meet, args=(sock,), daemon=True).start()

    def _meet(self, sock: socket.socket) -> None:
        try:
            if credentials(sock)[1] != os.getuid():
                sock.close()
                return
            line = Connection.over(sock, None)
            try:
                first = line.first(_FIRST_S)
                if first is None or not self._knows(first.message):
                    line.close()
                    return
                self._granting.over(line, first.message)
            except HostError as error:
                with contextlib.suppress(OSError):
                    line.say({"op": "refused", "text": str(error)})
                line.close()
            except (FrameError, OSError, KeyError, TypeError, ValueError):
                line.close()
        finally:
            self._turns.release()

    def _knows(self, message: Mapping[str, Any]) -> bool:
        said = str(message.get("secret", "")).encode()
        return message.get("op") == "resume" and hmac.compare_digest(said, self._secret.encode())
