"""The profile of a job at its head, without processes."""

from types import SimpleNamespace
from typing import Any

from torch_xdist.launcher.head.profiles import Profiles
from torch_xdist.launcher.head.requests import Question

BEGIN = {"op": "profile", "do": "begin", "ranks": None, "most": 3, "seconds": 5.0}


class Job:
    """Ranks 0 and 1 on host a, 2 and 3 on host b."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self.states = [self.host(0, "a", range(2)), self.host(1, "b", range(2, 4))]
        self.profiles = Profiles(self.states)  # type: ignore[arg-type]

    def host(self, index: int, name: str, ranks: range) -> Any:
        def send(message: dict[str, Any], _: bytes) -> None:
            self.sent.append((name, message))

        return SimpleNamespace(index=index, name=name, ranks=ranks, send=send, is_over=False)

    def ask(self, now_s: float, **message: Any) -> dict[str, Any]:
        question = Question({**BEGIN, "python_calls": False, **message})
        self.profiles.ask(question, now_s)
        return question.wait()


def test_the_first_ranks_are_asked_on_their_hosts() -> None:
    job = Job()
    begun = job.ask(0.0)
    assert begun["hosts"] == {"0": "a", "1": "a", "2": "b"} and begun["all"] == 4
    assert [(host, told["ranks"]) for host, told in job.sent] == [("a", [0, 1]), ("b", [2])]
    assert "no rank 4; its ranks here are 0 to 3" in Job().ask(0.0, ranks=[1, 4])["refused"]


def test_what_nobody_asks_about_is_given_up() -> None:
    job = Job()
    begun = job.ask(0.0)
    job.profiles.keep_time(9.0)
    assert "is being taken already" in job.ask(9.0)["refused"]
    job.ask(9.0, do="look", id=begun["id"])
    job.profiles.keep_time(18.0)
    assert "is being taken already" in job.ask(18.0)["refused"]
    job.profiles.keep_time(19.5)
    assert [(host, told["op"]) for host, told in job.sent[2:]] == [
        *(("a", "profile_over"), ("b", "profile_over")),
    ]
    assert "the profile was given up" in job.ask(20.0, do="look", id=begun["id"])["refused"]
    assert "id" in job.ask(20.0)


def test_a_rank_whose_host_is_gone_is_answered_for() -> None:
    job = Job()
    begun = job.ask(0.0)
    told = {"op": "profiled", "id": begun["id"], "rank": 0, "bytes": 3}
    job.profiles.take(told, b"")
    job.profiles.take({**told, "id": "another", "rank": 1}, b"")
    job.states[1].is_over = True
    answers = job.ask(1.0, do="look", id=begun["id"])["answers"]
    assert answers.keys() == {"0", "2"} and answers["0"]["bytes"] == 3
    assert "nothing runs on its host b any more, or yet" in answers["2"]["why"]


def test_a_part_is_answered_when_it_has_come() -> None:
    job = Job()
    identity = job.ask(0.0)["id"]
    question = Question({"op": "profile", "do": "part", "id": identity, "rank": 2, "at": 8})
    job.profiles.ask(question, 1.0)
    asked = {"op": "profile_part", "id": identity, "rank": 2, "at": 8}
    assert job.sent[-1] == ("b", asked)
    job.profiles.take(asked, b"data")
    assert question.wait() == {"data": b"data"}
    assert job.ask(2.0, do="over", id=identity) == {}
