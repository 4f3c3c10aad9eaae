"""Asks all hosts at once: their facts, then their ways to each other, then how fast these are.

All of it ends within one limit. A host that does not come, or does not come to an end, costs its
own answers only. Runs on the caller's thread; what hosts say comes over one queue.
"""

import contextlib
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from torch_xdist.launcher.backends.backend import Gone, Plane, Send
from torch_xdist.launcher.facts.host import refusal
from torch_xdist.launcher.facts.host_list import Host
from torch_xdist.launcher.preflight import measure, ways
from torch_xdist.system.frames import Message

PROBE = "torch_xdist.launcher.preflight.probe"
_BEAT_S = 2.0
_CLOCK_ASKED = 3
# The shares of the limit after which hosts that have not answered are no longer waited for.
# ssh gives a host up after 10 s, of 15.
_FACTS_SHARE, _REACH_SHARE, _RATES_SHARE = 0.7, 0.9, 0.95
_MOST_REACH_S = 3.0
# Of one way, and of all of them.
_MOST_RATE_S, _LEAST_RATE_S, _MOST_RATES_S = 0.5, 0.04, 6.0
_END_S, _HUNG_END_S = 2.0, 0.3
_TICK_S = 0.2


@dataclass
class Answer:
    """What one host has said, or why it has said nothing.

    `came_s`: seconds until it answered, None where it did not. `gone`: how it was lost, and
    `gone_code` the exit code of that. `clock_s`: by how much its clock is ahead of this machine's,
    `clock_error_s` how well that is known. `reached` and `rates`: its ways to the hosts of these
    numbers; `tries_ways` says that it was asked to try. `said`: what was printed there by nobody
    in particular.
    """

    name: str
    address: str = ""
    came_s: float | None = None
    facts: dict[str, Any] | None = None
    refusal: str = ""
    gone: str = ""
    gone_code: int = 0
    clock_s: float | None = None
    clock_error_s: float = 0.0
    tries_ways: bool = False
    reached: dict[int, ways.Reached] | None = None
    rates: dict[int, ways.Rate] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)

    @property
    def is_here(self) -> bool:
        """Whether it has answered everything that it was asked so far."""
        return self.facts is not None and not self.gone

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


Show = Callable[[int, int, list[str]], None]


def names_of(hosts: Sequence[Host]) -> list[str]:
    """What each is called, with its port where two have one name."""
    counts = Counter(host.name for host in hosts)
    return [f"{one.name}:{one.port}" if counts[one.name] > 1 else one.name for one in hosts]


def here(question: measure.Question, name: str, limit_s: float) -> Answer:
    """This machine's own answer."""
    return Answer(name, facts={**measure.facts(question, limit_s), "ports": [], "why_no_ports": ""})


class Probing(Protocol):
    """A probe that was started: what is used here of an `AgentProcess`."""

    def connect(self, plane: Plane, config: Message, stdin: int | None) -> Send: ...

    def explain(self, why: str, name: str, *, has_said_hello: bool) -> Gone: ...

    def end(self, limit_s: float = 10.0) -> None: ...


class Starter(Protocol):
    """What starts them: what is used here of a `Backend`."""

    def start(self, host_index: int, job_id: str, warmth: str, mark: str) -> Probing: ...


class Inquiry:
    """One check of several hosts.

    Args:
        backend: starts `PROBE` on them.
        question: for all of them, as `measure.facts` takes it.
        limit_s: for all of it.
        measures_rates: whether data is sent between them.
        show: called now and then with how many of how many have answered, and who has not.
    """

    def __init__(
        self,
        hosts: Sequence[Host],
        backend: Starter,
        question: Mapping[str, Any],
        limit_s: float,
        *,
        measures_rates: bool,
        show: Show,
    ) -> None:
        self._hosts, self._backend, self._question = hosts, backend, question
        self._limit_s, self._measures_rates, self._show = limit_s, measures_rates, show
        self._token = ways.new_token()
        self._inbox: queue.SimpleQueue[tuple[int, Message]] = queue.SimpleQueue()
        self._agents: list[Probing] = []
        self._sends: list[Send] = []
        self._has_rated = False
        self.answers = [Answer(name) for name in names_of(hosts)]

    def run(self) -> list[Answer]:
        """The answers of all hosts, in their order.

        Raises:
            HostError: there is no ssh here.
        """
        self._began_s = time.monotonic()
        try:
            self._start()
            self._until(self._all_settled, _FACTS_SHARE)
            self._try_ways()
            # Who was too late for the others is still told of.
            self._until(self._all_settled, 1.0)
        finally:
            self._end()
        return self.answers

    def _start(self) -> None:
        plane = Plane(None, self._hear)  # type: ignore[arg-type]  # no probe comes over gRPC
        limits = {"beat_s": _BEAT_S, "lost_s": self._limit_s + _END_S}
        for index, host in enumerate(self._hosts):
            agent = self._backend.start(index, "check", "cold", "XLA_RUN_CHECK=1")
            self._agents.append(agent)
            question = {**self._question, "address": host.address}
            config = {"op": "config", "host_index": index, **limits, "token": self._token}
            self._sends.append(agent.connect(plane, {**config, "question": question}, None))

    def _try_ways(self) -> None:
        places = {
            index: [(answer.address, port) for port in answer.facts["ports"]]
            for index, answer in enumerate(self.answers)
            if answer.is_here and answer.facts is not None and answer.facts["ports"]
        }
        if len(places) < 2:
            return
        # Whoever hears nothing has to give up in time to say so.
        left_s = self._limit_s * _REACH_SHARE - self._taken_s()
        limit_s = max(0.1, min(_MOST_REACH_S, 0.7 * left_s))
        for index in places:
            others = {str(i): place for i, place in places.items() if i != index}
            self.answers[index].tries_ways = True
            self._sends[index]({"op": "reach", "places": others, "limit_s": limit_s}, b"")
        self._until(lambda: self._have_reached(places), _REACH_SHARE)
        if self._measures_rates:
            self._rate(places)

    def _rate(self, places: Mapping[int, Sequence[ways.Address]]) -> None:
        """From the first host to each of the others that it reaches."""
        first = min(places)
        reached = self.answers[first].reached or {}
        others = {str(i): places[i] for i in places if "ms" in reached.get(i, {})}
        if not others:
            return
        left_s = self._limit_s * _RATES_SHARE - self._taken_s()
        # Beside the time for the data itself there is some for three connections.
        all_s = min(_MOST_RATES_S, 0.7 * left_s)
        each_s = max(_LEAST_RATE_S, min(_MOST_RATE_S, all_s / len(others)))
        self._sends[first]({"op": "rates", "places": others, "seconds": each_s}, b"")
        self._until(lambda: self._has_rated or bool(self.answers[first].gone), _RATES_SHARE)

    # ---- what is heard -------------------------------------------------------------------------

    def _hear(self, index: int, message: Message, blob: bytes) -> None:
        """On threads of the hosts' streams."""
        if message["op"] in ("hello", "clock"):  # every moment until it is read counts
            message = {**message, "heard_s": time.time(), "came_s": self._taken_s()}
        self._inbox.put((index, message))

    def _taken_s(self) -> float:
        return time.monotonic() - self._began_s

    def _until(self, is_done: Callable[[], bool], share: float) -> None:
        """Take what is said, until this is so or that share of the limit has passed."""
        end_s = self._began_s + share * self._limit_s
        shown_s = 0.0
        while not is_done() and (left_s := end_s - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                self._take(*self._inbox.get(timeout=min(left_s, _TICK_S)))
            if time.monotonic() - shown_s >= _TICK_S:
                shown_s = time.monotonic()
                waiting = [one.name for one in self.answers if not (one.facts or one.gone)]
                self._show(len(self.answers) - len(waiting), len(self.answers), waiting)

    def _take(self, index: int, message: Message) -> None:
        answer = self.answers[index]
        match message["op"]:
            case "hello":
                answer.came_s = round(message["came_s"], 3)
                answer.refusal = refusal(message)
                for _ in range(_CLOCK_ASKED):
                    self._sends[index]({"op": "clock", "sent_s": time.time()}, b"")
            case "clock":
                self._set_clock(answer, message)
            case "facts":
                answer.facts = message["facts"]
                answer.address = message["facts"].get("host", {}).get("address", "")
            case "reached":
                answer.reached = {int(i): found for i, found in message["found"].items()}
            case "rate":
                answer.rates[int(message["index"])] = message["found"]
            case "rated":
                self._has_rated = True
            case "note":
                answer.said.append(message["text"])
            case "gone":
                self._lose(index, message["why"])

    @staticmethod
    def _set_clock(answer: Answer, message: Message) -> None:
        """The answer that came fastest tells best."""
        sent_s, heard_s = message["sent_s"], message["heard_s"]
        error_s = (heard_s - sent_s) / 2
        if answer.clock_s is None or error_s < answer.clock_error_s:
            answer.clock_s = round(message["time_s"] - (sent_s + heard_s) / 2, 6)
            answer.clock_error_s = round(error_s, 6)

    def _lose(self, index: int, why: str) -> None:
        answer = self.answers[index]
        has_said_hello = answer.came_s is not None
        gone = self._agents[index].explain(why, answer.name, has_said_hello=has_said_hello)
        answer.gone, answer.gone_code = gone.text, gone.exit_code

    def _all_settled(self) -> bool:
        return all(answer.facts is not None or answer.gone for answer in self.answers)

    def _have_reached(self, indices: Iterable[int]) -> bool:
        return all(self.answers[i].reached is not None or self.answers[i].gone for i in indices)

    def _end(self) -> None:
        """Every probe ends with its stream; those that do not answer are not waited for."""
        threads = [
            threading.Thread(
                target=agent.end, args=(_END_S if answer.is_here else _HUNG_END_S,), daemon=True
            )
            for agent, answer in zip(self._agents, self.answers, strict=False)
        ]
        for thread in threads:
            thread.start()
        end_s = time.monotonic() + 2 * _END_S
        for thread in threads:
            thread.join(max(0.0, end_s - time.monotonic()))
