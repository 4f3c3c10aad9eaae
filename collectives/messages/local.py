"""Messages between ranks of one host: of processes, through their servers, or of threads."""

import functools
from collections.abc import Mapping, Sequence

from torch_xdist.collectives.errors import CollectiveError, RankLostError
from torch_xdist.collectives.messages.message_queue import MessageQueue
from torch_xdist.collectives.messages.peers import Peers
from torch_xdist.collectives.messages.rendezvous import Rendezvous
from torch_xdist.collectives.messages.server import Handler, Request

_KEEPER = 0  # the rank that keeps the rendezvous of the job


class LocalCommunicator:
    """Messages of a process. Every connection begins with the handshake, so they are this job's."""

    is_authenticated = True

    def __init__(self, rank: int, world_size: int, peers: Peers) -> None:
        self.rank, self.world_size = rank, world_size
        self._peers, self._messages = peers, MessageQueue()
        self._rendezvous = Rendezvous(_KEEPER, peers.has_ended)

    def handlers(self) -> Mapping[str, Handler]:
        """What this rank's server answers, by kind of request."""
        return {"rendezvous": self._answer_rendezvous, "message": self._answer_message}

    def tick(self) -> None:
        """To be called a few times a second."""
        self._rendezvous.look()

    def exchange(self, tag: str, payload: bytes, ranks: tuple[int, ...]) -> list[bytes]:
        """Every rank's payload, in the order of `ranks`."""
        if self.rank == _KEEPER:
            return self._rendezvous.exchange(tag, ranks, self.rank, payload)
        question = {"kind": "rendezvous", "tag": tag, "ranks": ranks, "rank": self.rank}
        answer = self._peers.ask(_KEEPER, f"rendezvous {tag!r}", question, payload)
        if "error" in answer.message:
            raise RankLostError(answer.message["error"])
        return list(answer.blobs)

    def send(self, target: int, tag: str, payload: bytes) -> None:
        """Send a message; returns when the target has it."""
        if target == self.rank:
            self._messages.put(target, tag, payload)
        else:
            question = {"kind": "message", "source": self.rank, "tag": tag}
            self._peers.ask(target, f"send on {tag!r}", question, payload)

    def receive(self, source: int | None, tag: str) -> tuple[int, bytes]:
        """The next message under `tag` from `source` (None: anybody): (source, payload)."""
        return self._messages.take(source, tag, self._peers.has_ended)

    def _answer_rendezvous(self, request: Request) -> None:
        tag, ranks, rank = (request.message[name] for name in ("tag", "ranks", "rank"))
        # Before the arrival: nobody can have answered yet.
        request.wait()
        done = functools.partial(_answer, request)
        self._rendezvous.arrive(tag, tuple(ranks), rank, request.payload, done)

    def _answer_message(self, request: Request) -> None:
        self._messages.put(request.message["source"], request.message["tag"], request.payload)
        request.answer()


def _answer(request: Request, outcome: list[bytes] | CollectiveError) -> None:
    if isinstance(outcome, CollectiveError):
        request.answer({"error": str(outcome)})
    else:
        request.answer(None, *outcome)


class ThreadCommunicator:
    """Messages of one thread that is a rank, to the other threads of the process."""

    is_authenticated = True

    def __init__(self, rank: int, rendezvous: Rendezvous, queues: Sequence[MessageQueue]) -> None:
        self.rank, self.world_size = rank, len(queues)
        self._rendezvous, self._queues = rendezvous, queues

    def exchange(self, tag: str, payload: bytes, ranks: tuple[int, ...]) -> list[bytes]:
        """Every rank's payload, in the order of `ranks`."""
        return self._rendezvous.exchange(tag, ranks, self.rank, payload)

    def send(self, target: int, tag: str, payload: bytes) -> None:
        """Send a message."""
        self._queues[target].put(self.rank, tag, payload)

    def receive(self, source: int | None, tag: str) -> tuple[int, bytes]:
        """The next message under `tag` from `source` (None: anybody): (source, payload)."""
        return self._queues[self.rank].take(source, tag, lambda rank: False)
