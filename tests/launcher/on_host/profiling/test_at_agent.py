"""The profiles of a host's ranks at its agent, without processes."""

import os
from types import SimpleNamespace
from typing import Any

from torch_xdist.launcher.on_host.profiling import at_agent
from torch_xdist.launcher.on_host.profiling.at_agent import RankProfiles
from torch_xdist.system.frames import to_memory_file


class Host:
    """Ranks 0 and 1; `said` to the head, `sent` to ranks."""

    def __init__(self) -> None:
        self.said: list[tuple[dict[str, Any], bytes]] = []
        self.sent: list[dict[str, Any]] = []
        link = SimpleNamespace(send=self.sent.append)
        facts = {"link": link, "process": object(), "program": False, "ended": False}
        self.ranks = {rank: SimpleNamespace(**facts) for rank in (0, 1)}
        self.profiles = RankProfiles(
            lambda message, blob=b"": self.said.append((message, blob)),
            self.ranks,  # type: ignore[arg-type]
        )

    def ask(self, *ranks: int, identity: str = "1") -> None:
        facts = {"seconds": 1.0, "python_calls": False}
        self.profiles.take({"op": "profile", "id": identity, "ranks": list(ranks), **facts})

    def answer(self, data: bytes, identity: str = "1") -> int:
        fd = to_memory_file(data)
        told = {"op": "profiled", "id": identity, "bytes": len(data)}
        self.profiles.told(0, told, [fd])
        return fd

    def whys(self) -> list[tuple[int, str]]:
        return [(told["rank"], told["why"]) for told, _ in self.said if "why" in told]


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def test_what_a_rank_has_found_is_handed_out_in_parts_until_it_is_over() -> None:
    host = Host()
    host.ask(0)
    data = bytes(at_agent.PART_BYTES) + b"end"
    fd = host.answer(data)
    for at in (0, at_agent.PART_BYTES):
        host.profiles.take({"op": "profile_part", "id": "1", "rank": 0, "at": at})
    assert b"".join(blob for _, blob in host.said) == data
    host.profiles.take({"op": "profile_over", "id": "1"})
    assert not is_open(fd)
    said = len(host.said)
    host.profiles.take({"op": "profile_part", "id": "1", "rank": 0, "at": 0})
    assert len(host.said) == said


def test_an_answer_to_what_is_over_is_dropped() -> None:
    host = Host()
    host.ask(0)
    host.profiles.take({"op": "profile_over", "id": "1"})
    assert host.sent[-1] == {"op": "profile_over", "id": "1"}
    assert not is_open(host.answer(b"late")) and host.said == []


def test_ranks_that_cannot_answer_are_answered_for() -> None:
    host = Host()
    host.ranks[0].program, host.ranks[1].ended = True, True
    host.ask(0, 1, 2)
    assert host.whys() == [
        (0, "it is a program of its own, and runs no Python of ours"),
        (1, "it has ended"),
        (2, "it has not been started yet"),
    ]
    host.ranks[1].ended = False
    host.ask(1, identity="2")
    host.profiles.ended(1)
    assert host.whys()[-1] == (1, "it ended before its profile was there")


def test_a_rank_that_never_answers_does_not_find_its_link_full() -> None:
    host = Host()
    for number in range(20):
        host.ask(0, identity=str(number))
    assert host.whys()[-1] == (0, "it was asked 8 times, and has not answered")
    assert len([one for one in host.sent if one["op"] == "profile"]) == 8
    host.answer(b"at last", identity="0")
    host.ask(0, identity="21")
    assert host.sent[-1]["id"] == "21"
