"""The profile that is taken of a job: asked for by `xla-run profile`, taken by the ranks.

The head carries questions and answers between the two, and judges nothing by them: whoever asked
waits, fetches the profiles part by part, and says when it has them. If it is gone without a word,
its profile is given up soon.
"""

import secrets
from collections.abc import Iterable

from torch_xdist.launcher.head.hosts import HostState
from torch_xdist.launcher.head.requests import Question
from torch_xdist.system.frames import Message

OPS = ("profiled", "profile_part")
# Who asked looks several times a second.
_GIVEN_UP_S = 10.0


class Profiles:
    """The profiles of one attempt, one after the other.

    Args:
        hosts: all of them.
    """

    def __init__(self, hosts: Iterable[HostState]) -> None:
        self._hosts = [*hosts]
        self._id = ""
        self._answers: dict[int, Message] = {}
        self._asked: dict[int, HostState] = {}
        self._parts: dict[tuple[int, int], Question] = {}
        self._given_up_s = 0.0

    def ask(self, question: Question, now_s: float) -> None:
        """What `xla-run profile` says; it is answered at once, or when the part is there."""
        message = question.message
        if message["do"] == "begin":
            question.answer(self._begin(message, now_s))
        elif message["id"] != self._id:
            question.answer({"refused": "the profile was given up"})
        else:
            self._given_up_s = now_s + _GIVEN_UP_S
            self._go_on(question)

    def take(self, message: Message, blob: bytes) -> None:
        """What an agent says."""
        if message["id"] != self._id:
            return
        rank = int(message["rank"])
        if message["op"] == "profiled":
            self._answers.setdefault(rank, message)
        elif (question := self._parts.pop((rank, int(message["at"])), None)) is not None:
            question.answer({"data": blob})

    def keep_time(self, now_s: float) -> None:
        """Give up what nobody has asked about for long."""
        if self._id and now_s >= self._given_up_s:
            self._over()

    def _begin(self, message: Message, now_s: float) -> Message:
        if self._id:
            return {
                "refused": "a profile of it is being taken already; wait until that `xla-run "
                "profile` has ended"
            }
        ranks = {rank: state for state in self._hosts for rank in state.ranks}
        chosen = message["ranks"] if message["ranks"] is not None else [*ranks][: message["most"]]
        if unknown := [rank for rank in chosen if rank not in ranks]:
            return {
                "refused": f"it has no rank {unknown[0]}; its ranks here are "
                f"{min(ranks)} to {max(ranks)}"
            }
        self._id, self._answers = secrets.token_hex(8), {}
        self._asked = {rank: ranks[rank] for rank in chosen}
        self._given_up_s = now_s + _GIVEN_UP_S
        told = {name: message[name] for name in ("seconds", "python_calls")}
        for state in self._hosts:
            own = [rank for rank in chosen if rank in state.ranks]
            if own and not state.is_over:
                state.send({"op": "profile", "id": self._id, "ranks": own, **told}, b"")
        names = {str(rank): state.name for rank, state in self._asked.items()}
        return {"id": self._id, "hosts": names, "all": len(ranks)}

    def _go_on(self, question: Question) -> None:
        message = question.message
        match message["do"]:
            case "look":
                question.answer({"answers": {str(rank): told for rank, told in self._found()}})
            case "part":
                rank, at = int(message["rank"]), int(message["at"])
                self._parts[rank, at] = question
                asked = {"op": "profile_part", "id": self._id, "rank": rank, "at": at}
                self._asked[rank].send(asked, b"")
            case _:
                self._over()
                question.answer({})

    def _found(self) -> Iterable[tuple[int, Message]]:
        for rank, state in self._asked.items():
            if rank in self._answers:
                yield rank, self._answers[rank]
            elif state.is_over:
                yield rank, {"why": f"nothing runs on its host {state.name} any more, or yet"}

    def _over(self) -> None:
        for state in {state.index: state for state in self._asked.values()}.values():
            if not state.is_over:
                state.send({"op": "profile_over", "id": self._id}, b"")
        self._id, self._answers, self._asked = "", {}, {}
        self._parts.clear()
