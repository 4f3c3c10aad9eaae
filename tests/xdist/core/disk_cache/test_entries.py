"""Entries of a folder: whole or absent, damaged ones, and those that make room."""

import errno
import os
import time

import pytest

from torch_xdist.core.disk_cache.entries import Entries

NAME = "0123456789abcdef"


@pytest.fixture
def entries(opened):
    return lambda limit_bytes=10**6: Entries(opened(), limit_bytes)


def test_what_is_written_is_read_and_only_its_owner_may(entries, tmp_path):
    kept = entries()
    assert kept.read(NAME) is None
    assert kept.write(NAME, b"program")
    assert kept.read(NAME) == b"program"
    assert [path.stat().st_mode & 0o777 for path in tmp_path.iterdir()] == [0o600]


@pytest.mark.parametrize("damage", [b"", b"torch", b"\0" * 200])
def test_a_damaged_entry_is_removed_and_counted(entries, tmp_path, damage, counted):
    kept = entries()
    kept.write(NAME, b"program")
    (file,) = tmp_path.iterdir()
    file.write_bytes(damage)
    before = counted("PersistentCacheDamaged")
    assert kept.read(NAME) is None
    assert counted("PersistentCacheDamaged") == before + 1
    assert not [*tmp_path.iterdir()]


def test_one_flipped_bit_is_damage(entries, tmp_path):
    kept = entries()
    kept.write(NAME, b"program")
    (file,) = tmp_path.iterdir()
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert kept.read(NAME) is None


def test_the_least_recently_used_entries_make_room(entries, tmp_path):
    kept = entries(limit_bytes=100_000)
    names = [f"{n:016x}" for n in range(40)]
    for number, name in enumerate(names):
        kept.write(name, bytes(4000))
        os.utime(tmp_path / f"{name}-cache", (1000 + number, 1000 + number))
        if number > 2:
            assert kept.read(names[0]) is not None  # it is used again and again
    sizes = [path.stat().st_blocks * 512 for path in tmp_path.iterdir()]
    assert sum(sizes) <= 100_000 and len(sizes) >= 8
    assert kept.read(names[0]) and kept.read(names[-1])
    assert kept.read(names[1]) is None


def test_an_entry_larger_than_the_whole_is_not_kept(entries, tmp_path):
    assert not entries(limit_bytes=1000).write(NAME, bytes(2000))
    assert not [*tmp_path.iterdir()]


def test_a_full_disk_leaves_nothing_of_an_entry(entries, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        entries().write(NAME, b"program")
    assert not [*tmp_path.iterdir()]


def test_what_a_killed_writer_left_goes_when_it_is_old(entries, tmp_path):
    old, young = tmp_path / "a.1234.new", tmp_path / "b.1234.new"
    for file in (old, young):
        file.write_bytes(b"half")
    os.utime(old, (time.time() - 7200,) * 2)
    entries().write(NAME, b"program")
    assert not old.exists() and young.exists()
