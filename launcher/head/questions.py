"""What `xla-run ps | stack | stop | profile` ask a running job, and what its head answers.

Questions come on threads of gRPC, which wait; they are answered on the thread of the head.
"""

import base64
import time
from collections.abc import Callable

from torch_xdist.launcher.head.hosts import Hosts
from torch_xdist.launcher.head.profiles import Profiles
from torch_xdist.launcher.head.requests import Question, Requests
from torch_xdist.system.frames import Message


class Questions:
    """Those of one attempt.

    Args:
        tell: puts a message into the inbox of the head; from any thread.
        requests: where requests to stop go.
        status: how the job stands.
    """

    def __init__(
        self,
        tell: Callable[[Message], None],
        requests: Requests,
        status: Callable[[], Message],
    ) -> None:
        self._tell, self._requests, self._status = tell, requests, status
        self._hosts = Hosts()
        self._want_stacks: list[Question] = []
        self._profiles = Profiles(())

    def of(self, hosts: Hosts) -> None:
        """These are the hosts of the attempt."""
        self._hosts, self._profiles = hosts, Profiles(hosts)

    def answer(self, asked: Message) -> Message:
        """On a thread of gRPC, which only asks the thread of the head."""
        if asked["op"] == "stop":
            self._requests.ask(int(asked["signal"]), now=bool(asked.get("now")))
            return {"ok": True}
        waiting = Question(asked)
        self._tell({"op": "question", "question": waiting})
        answer = waiting.wait()
        if "data" in answer:
            return {"data": base64.b64encode(answer["data"]).decode()}
        return answer

    def take(self, question: Question) -> None:
        """On the head's thread."""
        match question.message["op"]:
            case "stack":
                self._want_stacks.append(question)
                self._hosts.ask_stacks()
            case "profile":
                self._profiles.ask(question, time.monotonic())
            case _:
                question.answer(self._status())

    def on_stacks(self) -> None:
        """A host has told its stacks."""
        found = self._hosts.stacks()
        if found is not None:
            for question in self._want_stacks:
                question.answer({"stacks": found})
            self._want_stacks.clear()

    def on_profile(self, message: Message, blob: bytes) -> None:
        """A host tells of a profile."""
        self._profiles.take(message, blob)

    def keep_time(self) -> None:
        """Give up what nobody waits for."""
        self._profiles.keep_time(time.monotonic())
