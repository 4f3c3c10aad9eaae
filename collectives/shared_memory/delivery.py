"""Array messages to the queues of all other ranks of a host, also of those that start later."""

import atexit
import contextlib
import functools
import sys
import threading
import time
from collections import deque

from torch_xdist.collectives.errors import CollectiveError, JoinError, RankLostError
from torch_xdist.collectives.groups import ranks_text
from torch_xdist.collectives.messages.peers import START_S, Peers
from torch_xdist.collectives.messages.server import Request
from torch_xdist.collectives.shared_memory.array_messages import ArrayMessage, ArrayQueue
from torch_xdist.collectives.workers import Workers

_NAP_S = 0.02


class Delivery:
    """What one rank sends.

    To a rank that has not started a thread of ours delivers, in order, once it is there. A process
    that ends before waits for it, no longer than a start may take, and says so.
    """

    def __init__(self, rank: int, world_size: int, peers: Peers, start_s: float = START_S) -> None:
        self._rank, self._peers, self._start_s = rank, peers, start_s
        self._others = [other for other in range(world_size) if other != rank]
        self._later: dict[int, deque[ArrayMessage]] = {}
        self._lock = threading.Lock()
        self._workers = Workers("xdist-delivery")
        atexit.register(self._finish)

    def deliver(self, message: ArrayMessage) -> None:
        """Bring the message to every other rank; returns when those that started have it.

        Raises:
            CollectiveError: a rank lives and does not take it.
        """
        for target in self._others:
            with self._lock:
                waiting = self._later.get(target)
                if waiting is None and not self._peers.has_started(target):
                    # It waits for our lock; where it cannot start, nothing is kept for it.
                    self._workers.run(functools.partial(self._deliver_later, target))
                    waiting = self._later[target] = deque()
                if waiting is not None:
                    waiting.append(message.copy())
                    continue
            self._deliver(target, message)

    def _deliver(self, target: int, message: ArrayMessage) -> None:
        question = {
            "kind": "array",
            "source": message.source,
            "channel": message.channel,
            "type": message.kind,
            "what": message.what,
        }
        what = f"send(channel {message.channel}) of {message.what}"
        with contextlib.suppress(RankLostError):  # nobody is left there to receive
            self._peers.ask(
                target, what, question, descriptors=(message.descriptor,), start_s=self._start_s
            )

    def _deliver_later(self, target: int) -> None:
        while True:
            with self._lock:
                waiting = self._later[target]
                if not waiting:
                    del self._later[target]
                    return
                message = waiting[0]
            try:
                self._deliver(target, message)
            except JoinError:
                with self._lock:
                    given_up = list(self._later.pop(target))
                self._say(f"drops {len(given_up)} messages of send: rank {target} did not start")
                for message in given_up:
                    message.close()
                return
            except CollectiveError as error:
                self._say(f"drops a message: {error}")
            waiting.popleft().close()

    def _finish(self) -> None:
        """At the end of the process: who has not started yet may be the receiver."""
        limit_s, is_said = time.monotonic() + self._start_s, False
        while (targets := self._awaited()) and time.monotonic() < limit_s:
            if not is_said:
                is_said = True
                self._say(f"waits at its end for {ranks_text(targets)} to start and receive")
            time.sleep(_NAP_S)

    def _awaited(self) -> list[int]:
        """The ranks that have not started, and for which there is what nobody has received yet."""
        with self._lock:
            return [
                target
                for target, waiting in self._later.items()
                if not all(message.is_taken() for message in waiting)
            ]

    def _say(self, what: str) -> None:
        print(f"torch-xdist: rank {self._rank} {what}", file=sys.stderr, flush=True)


def answer(queue: ArrayQueue, request: Request) -> None:
    """Put the message that another rank brings into this rank's queue."""
    told, [descriptor] = request.message, request.descriptors
    queue.put(ArrayMessage(told["source"], told["channel"], told["type"], told["what"], descriptor))
    request.answer()
