"""The head's end: what it sends to hosts that take it, are slow, refuse or ask too much."""

import queue
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torch_xdist.launcher.facts.errors import PreflightError, ProtocolError, UsageError
from torch_xdist.launcher.facts.host_list import Host
from torch_xdist.launcher.facts.job import Job
from torch_xdist.launcher.shipping import sender
from torch_xdist.launcher.shipping.sender import Sending, Shipment

SHIPPED = {"op": "shipped", "folder": "/copy", "sent_bytes": 1, "seconds": 0.1}


class Way:
    """A sending to two hosts, and what these were sent."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.notes: list[str] = []
        self.sent: queue.SimpleQueue[tuple[int, dict[str, Any], bytes]] = queue.SimpleQueue()
        self.told: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        hosts = [Host("a"), Host("b")]
        made = Job("program", ["x"], 2, job_id="j", cwd=str(folder), ship=str(folder), hosts=hosts)
        made.ship_limit_bytes = 10**9
        self.shipment = Shipment.of(made)
        self.job = made
        self.sending = Sending(
            self.shipment,
            lambda index, message, blob: self.told.put(dict(message)),
            self.notes.append,
            lambda event, **facts: None,
        )
        for index, name in enumerate("ab"):
            self.sending.begin(index, name, self._to(index))
            assert self.sent.get(timeout=5)[1] == {
                "op": "ship",
                "name": f"{self.shipment.name}-{index}",
            }

    def _to(self, index: int) -> Callable[..., None]:
        return lambda message, blob: self.sent.put((index, dict(message), blob))

    def wants(self, index: int, *numbers: int) -> None:
        self.sending.take(index, {"op": "wanted", "numbers": list(numbers)})


@pytest.fixture
def way(tmp_path: Path) -> Way:
    folder = tmp_path.resolve() / "code"
    folder.mkdir()
    (folder / "a").write_bytes(b"one")
    (folder / "b").write_bytes(b"three")
    return Way(folder)


def test_a_host_is_sent_what_it_wants_and_no_more(way: Way) -> None:
    way.wants(1, 1)
    assert way.sent.get(timeout=5) == (1, {"op": "contents", "number": 1}, b"three")
    way.wants(0)
    assert not way.sending.are_all_there
    way.sending.take(0, SHIPPED)
    assert not way.sending.are_all_there and not way.notes
    way.sending.take(1, SHIPPED)
    assert way.sending.are_all_there
    assert way.notes == ["shipped 2 files (8 bytes) to hosts a, b: 0 bytes to 5 bytes sent to each"]


@pytest.mark.parametrize("numbers", [[7], [-1], ["a"]])
def test_a_host_that_asks_for_what_there_is_not_is_refused(way: Way, numbers: list[Any]) -> None:
    with pytest.raises(ProtocolError, match="host b: it asks for 1 files, and not all are there"):
        way.wants(1, *numbers)


def test_a_host_asks_once(way: Way) -> None:
    way.wants(0, 0)
    with pytest.raises(ProtocolError, match="host a: it asks for 1 files"):
        way.wants(0, 0)


def test_a_host_that_was_sent_nothing_has_nothing_to_say() -> None:
    sending = Sending(None, lambda *told: None, print, print)
    with pytest.raises(ProtocolError, match="host 0: it says 'wanted', and was sent no code"):
        sending.take(0, {"op": "wanted", "numbers": []})
    assert sending.are_all_there and sending.have_left(())
    assert sending.moved(0, Job("program", ["x"], 1), {"cwd": "/x"}) == {"cwd": "/x"}


def test_why_a_host_cannot_have_it_is_told_with_its_name(way: Way) -> None:
    with pytest.raises(PreflightError, match="host b: no room"):
        way.sending.take(1, {"op": "unshippable", "why": "no room"})


@pytest.mark.parametrize("text", [b"ONE", b"o"])
def test_a_file_that_has_changed_is_told(way: Way, text: bytes) -> None:
    (way.folder / "a").write_bytes(text)
    way.wants(0, 0)
    message = way.told.get(timeout=5)
    told = "a was changed while it was shipped; start again when nobody writes to it, or leave it"
    with pytest.raises(PreflightError, match=told):
        way.sending.take(0, message)


def test_a_file_that_is_gone_is_told(way: Way) -> None:
    (way.folder / "a").unlink()
    way.wants(0, 0)
    with pytest.raises(PreflightError, match="a cannot be read: No such file or directory"):
        way.sending.take(0, way.told.get(timeout=5))


def test_a_link_in_the_place_of_a_file_is_not_followed(way: Way) -> None:
    (way.folder / "a").unlink()
    (way.folder / "a").symlink_to("b")
    way.wants(0, 0)
    with pytest.raises(PreflightError, match="a cannot be read: Too many levels"):
        way.sending.take(0, way.told.get(timeout=5))


def test_a_slow_host_has_little_on_its_way_and_holds_up_no_other(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "WINDOW_BYTES", 4)
    way.wants(0, 0, 1)
    way.wants(1, 0)
    first = {way.sent.get(timeout=5)[0::2] for _ in range(3)}
    assert first == {(0, b"one"), (0, b"three"), (1, b"one")}


def test_nothing_is_sent_before_what_is_on_its_way_was_written(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "WINDOW_BYTES", 3)
    way.wants(0, 0, 1)
    assert way.sent.get(timeout=5)[2] == b"one"
    time.sleep(0.2)
    assert way.sent.empty()
    way.sending.take(0, {"op": "taken", "bytes": 1})
    assert way.sent.get(timeout=5)[2] == b"three"


def test_what_takes_long_is_told_now_and_then(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "_NOTICE_S", 0.0)
    way.wants(0, 0, 1)
    for size in (3, 5):
        way.sending.take(0, {"op": "taken", "bytes": size})
    assert way.notes == [f"shipping {way.folder} to hosts a, b: 3 bytes of 8 bytes"]


def test_many_hosts_are_counted_and_not_named(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "_MOST_NAMES", 1)
    for index in (0, 1):
        way.sending.take(index, SHIPPED)
    assert way.notes == ["shipped 2 files (8 bytes) to 2 hosts: 0 bytes sent to each"]


def test_at_the_end_every_host_says_what_it_has_left(way: Way) -> None:
    way.sending.leave(keep=True)
    assert [way.sent.get(timeout=5)[1] for _ in "ab"] == [{"op": "unship", "keep": True}] * 2
    way.sending.take(0, {"op": "unshipped", "kept": 2, "folder": "/copy"})
    assert way.notes == ["host a: 2 files of the ranks' own left in /copy"]
    assert not way.sending.have_left(()) and way.sending.have_left({1})


def test_after_the_end_nothing_more_is_sent(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "WINDOW_BYTES", 0)
    way.wants(0, 0, 1)
    way.sending.close()
    time.sleep(0.2)
    assert way.sent.empty() and way.told.empty()


def test_a_job_that_cannot_start_in_its_folder_is_refused_before_anything_starts(
    way: Way,
) -> None:
    way.job.cwd = "/"
    with pytest.raises(UsageError, match="the command was typed in /, which is not in it"):
        Shipment.of(way.job)
    way.job.ship = ""
    assert Shipment.of(way.job) is None
