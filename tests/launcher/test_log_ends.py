"""The end of a log on its way: no more than is allowed, and nothing where nothing comes."""

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from torch_xdist.launcher import log_ends
from torch_xdist.launcher.log_ends import LogEnds

PLACE = "b:/logs/j/attempt-0"


class Agent:
    """Where a head asks, and what it asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def send(self, message: Mapping[str, Any], blob: bytes) -> None:
        self.asked.append(dict(message))


@pytest.fixture
def agent() -> Agent:
    return Agent()


def answer(ends: LogEnds, rank: int, data: bytes, before: int = 0) -> None:
    ends.take({"op": "log_end", "rank": rank, "before": before}, data)


def test_a_host_gives_the_end_of_a_log_and_says_what_comes_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_ends, "MOST_BYTES", 4)
    (tmp_path / "rank-3.log").write_bytes(b"0123456789")
    message = {"op": "log_end", "rank": 3, "before": 6}
    assert log_ends.read(str(tmp_path), 3) == (message, b"6789")
    assert log_ends.read(str(tmp_path), 4) == ({**message, "rank": 4, "before": 0}, b"")


def test_a_link_in_the_place_of_a_log_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("secret")
    (tmp_path / "rank-0.log").symlink_to("other")
    assert log_ends.read(str(tmp_path), 0)[1] == b""


def test_a_log_that_is_still_written_is_waited_for(tmp_path: Path) -> None:
    log = tmp_path / "rank-0.log"
    log.write_bytes(b"first")

    def go_on() -> None:
        time.sleep(0.05)
        log.write_bytes(b"first and last")

    threading.Thread(target=go_on).start()
    assert log_ends.read(str(tmp_path), 0)[1] == b"first and last"


def test_what_comes_is_filed_where_logs_are_looked_for(tmp_path: Path, agent: Agent) -> None:
    ends = LogEnds(str(tmp_path / "attempt-0"))
    ends.ask([(3, PLACE, agent.send)])
    assert agent.asked == [{"op": "log_end", "rank": 3}] and not ends.have_come()
    answer(ends, 3, b"the end", before=70)
    assert ends.have_come()
    path = tmp_path / "attempt-0/rank-3.log"
    assert ends.told(3, PLACE) == f"{PLACE}\nits end is here: {path}"
    assert path.read_text() == f"[70 bytes before this are in {PLACE}/rank-3.log]\nthe end"
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_host_that_has_no_log_and_one_that_says_nothing_leave_none(
    tmp_path: Path, agent: Agent
) -> None:
    ends = LogEnds(str(tmp_path))
    ends.ask([(0, PLACE, agent.send), (1, PLACE, agent.send)])
    answer(ends, 0, b"")
    assert not ends.have_come()
    assert ends.told(0, PLACE) == ends.told(1, PLACE) == PLACE
    assert not list(tmp_path.iterdir())


def test_what_nobody_has_asked_for_is_not_filed(tmp_path: Path, agent: Agent) -> None:
    ends = LogEnds(str(tmp_path))
    answer(ends, 0, b"x")
    ends.ask([(0, PLACE, agent.send)])
    answer(ends, 0, b"x")
    answer(ends, 0, b"again")
    assert ends.told(0, PLACE) != PLACE
    assert (tmp_path / "rank-0.log").read_text() == "x"


def test_more_than_was_asked_for_is_cut(
    tmp_path: Path, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_ends, "MOST_BYTES", 4)
    monkeypatch.setattr(log_ends, "MOST_RANKS", 2)
    ends = LogEnds(str(tmp_path))
    ends.ask([(rank, PLACE, agent.send) for rank in range(9)])
    assert len(agent.asked) == 2
    answer(ends, 0, b"0123456789")
    ends.told(0, PLACE)
    assert (tmp_path / "rank-0.log").read_bytes() == b"6789"


def test_the_log_itself_is_never_written_over(tmp_path: Path, agent: Agent) -> None:
    (tmp_path / "rank-0.log").write_text("the whole log: the host is this machine")
    ends = LogEnds(str(tmp_path))
    ends.ask([(0, PLACE, agent.send)])
    answer(ends, 0, b"the end")
    assert ends.told(0, PLACE) == PLACE
    assert (tmp_path / "rank-0.log").read_text().startswith("the whole log")


def test_where_no_logs_are_kept_nothing_is_asked_for(agent: Agent) -> None:
    ends = LogEnds("")
    ends.ask([(0, PLACE, agent.send)])
    assert not agent.asked and ends.have_come() and ends.told(0, PLACE) == PLACE


def test_a_disk_that_hangs_holds_up_the_report_for_moments_only(
    tmp_path: Path, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()
    monkeypatch.setattr(log_ends, "LIMIT_S", 0.2)
    monkeypatch.setattr(LogEnds, "_file", lambda *told: over.wait(20))
    ends = LogEnds(str(tmp_path))
    ends.ask([(0, PLACE, agent.send)])
    answer(ends, 0, b"x")
    began_s = time.monotonic()
    assert ends.told(0, PLACE) == PLACE and time.monotonic() - began_s < 15
    over.set()
