"""The contents that a host keeps: whole ones under their hash, and no more than a bound."""

import hashlib
import os
import time
from pathlib import Path

import pytest

from torch_xdist.launcher.facts.errors import PreflightError
from torch_xdist.launcher.shipping.cache import Cache


def name(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def put(cache: Cache, data: bytes) -> None:
    incoming = cache.incoming(name(data))
    incoming.add(data[:1])
    incoming.add(data[1:])
    incoming.finish()
    incoming.close()


def has(cache: Cache, data: bytes, folder: Path) -> bool:
    with open(folder / "copy", "w+b") as file:
        return cache.copy(name(data), len(data), file.fileno())


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and path.name != "copy"]


def test_what_has_come_whole_can_be_copied(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    assert not has(cache, b"code", tmp_path)
    put(cache, b"code")
    assert has(Cache(tmp_path), b"code", tmp_path)
    assert (tmp_path / "copy").read_bytes() == b"code"


def test_a_content_that_was_damaged_on_its_way_is_refused_and_gone(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    incoming = cache.incoming(name(b"code"))
    incoming.add(b"c0de")
    told = r"4 bytes came whose hash is not \w{12}; they were changed on their way; start the job"
    with pytest.raises(PreflightError, match=told):
        incoming.finish()
    incoming.close()
    assert not files(tmp_path)


def test_a_content_that_comes_half_is_never_in_the_cache(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    incoming = cache.incoming(name(b"code"))
    incoming.add(b"co")
    assert not has(cache, b"code", tmp_path)
    incoming.close()
    assert not files(tmp_path)


@pytest.mark.parametrize("lost", [b"co", b"c0de"])
def test_what_the_disk_has_lost_counts_as_not_there(tmp_path: Path, lost: bytes) -> None:
    cache = Cache(tmp_path)
    put(cache, b"code")
    files(tmp_path)[0].write_bytes(lost)
    assert cache.may_have(name(b"code"), 4) == (len(lost) == 4)
    assert not has(cache, b"code", tmp_path)
    put(cache, b"code")
    assert has(cache, b"code", tmp_path)


def test_what_was_used_longest_ago_goes_first(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    for age_s, data in ((300, b"old1"), (200, b"old2"), (100, b"kept")):
        put(cache, data)
        path = tmp_path / "contents" / name(data)[:2] / name(data)[2:]
        os.utime(path, (time.time() - age_s,) * 2)
    assert has(cache, b"old1", tmp_path)  # it was used now
    cache.prune(8, keep=[name(b"kept")])
    assert [has(cache, one, tmp_path) for one in (b"old1", b"old2", b"kept")] == [True, False, True]
    cache.prune(0, keep=[name(b"kept")])
    assert [has(cache, one, tmp_path) for one in (b"old1", b"kept")] == [False, True]


def test_what_an_agent_that_was_killed_has_left_goes_after_an_hour(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    old, new = (tmp_path / "incoming" / one for one in ("old", "new"))
    old.write_bytes(b"x")
    new.write_bytes(b"x")
    os.utime(old, (time.time() - 4000,) * 2)
    cache.prune(100)
    assert files(tmp_path) == [new]
