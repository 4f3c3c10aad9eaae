"""A host's end: what it asks for, builds and refuses, whatever the head sends."""

import errno
import os
import queue
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from torch_xdist.launcher.shipping import receiver, tree
from torch_xdist.launcher.shipping.folder import Copy
from torch_xdist.launcher.shipping.manifest import Manifest
from torch_xdist.launcher.shipping.receiver import Receiver

SHIP = {"op": "ship", "name": "j-0"}


class Host:
    """A receiver whose words can be read one by one."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "state/code"
        self._said: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.receiver = Receiver(self.root, lambda message: self._said.put(dict(message)))

    def says(self) -> dict[str, Any]:
        return self._said.get(timeout=20)

    def refuses(self) -> str:
        message = self.says()
        assert message["op"] == "unshippable", message
        return str(message["why"])

    def send(self, number: int, data: bytes) -> None:
        self.receiver.take({"op": "contents", "number": number}, data)

    def left(self) -> list[Path]:
        return list((self.root / "jobs").iterdir())


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path)
    yield made
    made.receiver.close()


@pytest.fixture
def listed(tmp_path: Path) -> bytes:
    """A folder of three files, two of them alike."""
    folder = tmp_path.resolve() / "code"
    folder.mkdir()
    for name, text in (("a", "one"), ("b", "three"), ("c", "one"), ("d", "")):
        (folder / name).write_text(text)
    return tree.read(folder).to_bytes()


def shipped(host: Host, listed: bytes) -> dict[str, Any]:
    host.receiver.take(SHIP, listed)
    wanted = host.says()
    for number in wanted["numbers"]:
        host.send(number, b"one" if number == 0 else b"three")
        assert host.says()["op"] == "taken"
    return host.says()


def test_a_host_asks_once_for_each_content_that_it_has_not(host: Host, listed: bytes) -> None:
    host.receiver.take(SHIP, listed)
    assert host.says() == {"op": "wanted", "numbers": [0, 1]}
    host.send(0, b"o")
    host.send(0, b"ne")
    host.send(1, b"three")
    assert [host.says() for _ in range(3)] == [{"op": "taken", "bytes": n} for n in (1, 2, 5)]
    told = host.says()
    assert told["op"] == "shipped" and told["sent_bytes"] == 8
    copy = Path(told["folder"])
    assert {path.name: path.read_text() for path in copy.iterdir()} == {
        "a": "one",
        "b": "three",
        "c": "one",
        "d": "",
    }
    host.receiver.take({"op": "unship", "keep": False})
    assert host.says() == {"op": "unshipped", "kept": 0, "folder": str(copy)}
    assert not host.left()


def test_a_second_job_is_sent_nothing_again(tmp_path: Path, host: Host, listed: bytes) -> None:
    assert shipped(host, listed)["sent_bytes"] == 8
    other = Host(tmp_path)
    other.receiver.take({**SHIP, "name": "k-0"}, listed)
    assert other.says() == {"op": "wanted", "numbers": []}
    assert other.says()["sent_bytes"] == 0
    other.receiver.close()


def test_the_copy_of_a_kept_attempt_is_there_at_once(
    tmp_path: Path, host: Host, listed: bytes
) -> None:
    folder = shipped(host, listed)["folder"]
    host.receiver.take({"op": "unship", "keep": True})
    assert host.says()["op"] == "unshipped"
    again = Host(tmp_path)
    again.receiver.take(SHIP, listed)
    told = again.says()
    assert (told["op"], told["folder"], told["sent_bytes"]) == ("shipped", folder, 0)
    again.receiver.close()


def test_an_end_in_the_middle_leaves_nothing(host: Host, listed: bytes) -> None:
    host.receiver.take(SHIP, listed)
    host.says()
    host.send(0, b"o")
    host.receiver.close()
    assert not host.left() and not list((host.root / "incoming").iterdir())


def test_a_damaged_content_is_refused_and_leaves_nothing(host: Host, listed: bytes) -> None:
    host.receiver.take(SHIP, listed)
    host.says()
    host.send(0, b"0ne")
    assert host.says()["op"] == "taken"
    assert "they were changed on their way; start the job again" in host.refuses()
    host.receiver.close()
    assert not host.left() and not [p for p in host.root.rglob("*") if p.is_file()]


@pytest.mark.parametrize(("number", "data"), [(1, b"one"), (0, b"onetoomuch"), (0, b"")])
def test_other_bytes_than_were_to_come_are_refused(
    host: Host, listed: bytes, number: int, data: bytes
) -> None:
    host.receiver.take(SHIP, listed)
    host.says()
    host.send(number, data)
    told = f"{len(data)} bytes of file {number} came where 3 of file 0 were to come"
    assert told in host.refuses()


@pytest.mark.parametrize("name", ["../x", "", ".hidden", "a/b", "x" * 200])
def test_a_name_that_leads_elsewhere_is_refused(host: Host, listed: bytes, name: str) -> None:
    host.receiver.take({**SHIP, "name": name}, listed)
    assert "can be no name of a job" in host.refuses()


def test_a_list_that_cannot_be_read_is_refused(host: Host) -> None:
    host.receiver.take(SHIP, b"junk")
    assert "its list cannot be read" in host.refuses()


def test_what_nobody_thought_of_is_told_too(
    host: Host, listed: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Copy, "begin", lambda copy: 1 // 0)
    host.receiver.take(SHIP, listed)
    assert "ZeroDivisionError" in host.refuses()


def test_too_little_room_is_told_before_anything_is_sent(
    host: Host, listed: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiver, "_free_bytes", lambda root: 12)
    host.receiver.take(SHIP, listed)
    told = f"19 bytes are needed in {host.root}, and 12 bytes are free; make room there, or name"
    assert told in host.refuses()


def test_contents_of_other_jobs_make_room(
    tmp_path: Path, host: Host, listed: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped(host, listed)
    folder = tmp_path.resolve() / "other"
    folder.mkdir()
    (folder / "new").write_bytes(b"new")
    free = iter([0, 100])
    monkeypatch.setattr(receiver, "_free_bytes", lambda root: next(free))
    other = Host(tmp_path)
    other.receiver.take({**SHIP, "name": "k-0"}, tree.read(folder).to_bytes())
    assert other.says() == {"op": "wanted", "numbers": [0]}
    assert not list((host.root / "contents").glob("??/*"))
    other.receiver.close()


def test_a_disk_that_is_full_all_the_same_is_told(
    host: Host, listed: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(copy: Copy) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Copy, "begin", full)
    host.receiver.take(SHIP, listed)
    assert "11 bytes are needed in " in host.refuses()


def test_the_cache_is_bounded(host: Host, listed: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = host.root / "contents/00"
    contents.mkdir(parents=True, mode=0o700)
    for path in (host.root.parent, host.root):
        path.chmod(0o700)
    (contents / "old").write_bytes(b"old")
    monkeypatch.setattr(receiver, "KEPT_BYTES", 9)
    shipped(host, listed)
    end_s = time.monotonic() + 10
    while (contents / "old").exists():
        assert time.monotonic() < end_s
        time.sleep(0.01)
    assert len(list((host.root / "contents").glob("??/*"))) == 2


def test_nobody_else_may_use_the_cache(host: Host, listed: bytes) -> None:
    host.root.mkdir(parents=True)
    host.root.parent.chmod(0o777)
    host.receiver.take(SHIP, listed)
    assert "has mode 777, so others may write to it; set XLA_RUN_STATE_DIR" in host.refuses()


def test_the_place_is_beside_that_for_logs() -> None:
    assert receiver.place({"XLA_RUN_STATE_DIR": "/s", "XLA_RUN_LOG_DIR": "/l"}) == Path("/s/code")


def test_what_was_listed_is_what_is_read_back(listed: bytes) -> None:
    assert [entry.path for entry in Manifest.from_bytes(listed).entries] == ["a", "b", "c", "d"]
