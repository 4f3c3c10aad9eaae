"""What JAX is given and what is kept, alone and beside other processes."""

import errno
import os
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from torch_xdist.core.disk_cache import store as store_file
from torch_xdist.core.disk_cache.store import Store


@pytest.fixture
def store(opened, tmp_path):
    return lambda stamp="", **named: Store(opened(), str(tmp_path), 10**6, stamp, **named)


def test_programs_of_another_stamp_are_strangers(store):
    store("jaxlib 1").put("key", b"program")
    assert store("jaxlib 1").get("key") == b"program"
    assert store("jaxlib 2").get("key") is None


def test_a_folder_to_read_gets_nothing(store, tmp_path):
    store().put("key", b"program")
    before = {*tmp_path.iterdir()}
    reading = store(is_read_only=True)
    reading.put("other", b"program")
    assert reading.get("key") == b"program" and {*tmp_path.iterdir()} == before


def test_a_full_disk_costs_one_line_and_a_counter(store, monkeypatch, capsys, counted):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    monkeypatch.setattr(store_file, "_told", set())
    before, kept = counted("PersistentCacheFailure"), store()
    kept.put("key", b"program")
    kept.put("other", b"program")
    assert counted("PersistentCacheFailure") == before + 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].endswith("cannot be written (No space left on device); programs are not kept")


def test_a_program_that_xla_cannot_load_is_counted_and_replaced(store, counted):
    kept = store()
    kept.put("key", b"program")
    before = counted("PersistentCacheDamaged")
    assert kept.get("key") == b"program"
    kept.put("key", b"compiled anew")
    assert counted("PersistentCacheDamaged") == before + 1
    assert kept.get("key") == b"compiled anew"


# A process that has the turn of "key", says so, and compiles until it is told what to do.
FIRST = """
    import os, sys
    from torch_xdist.core.disk_cache.store import Store
    kept = Store(os.open(sys.argv[1], os.O_RDONLY), sys.argv[1], 10**6, "")
    with kept.turn():
        assert kept.get("key") is None
        print("compiling", flush=True)
        if sys.stdin.readline() == "put\\n":
            kept.put("key", b"of the first")
        else:
            os._exit(1)
"""


@pytest.fixture
def first(tmp_path):
    command = [sys.executable, "-c", textwrap.dedent(FIRST), tmp_path]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        assert process.stdout.readline() == "compiling\n"
        yield process


def asked(kept):
    """A thread that wants the program, and what it was given."""
    answers = []

    def ask():
        with kept.turn():
            answers.append(kept.get("key"))

    thread = threading.Thread(target=ask)
    thread.start()
    return thread, answers


def test_the_first_compiles_and_the_others_get_what_it_made(store, first, counted):
    before = counted("PersistentCacheWait")
    waiting = [asked(store()) for _ in range(2)]
    time.sleep(0.3)
    assert not any(answers for _, answers in waiting)
    first.stdin.write("put\n")
    first.stdin.flush()
    for thread, answers in waiting:
        thread.join(30)
        assert answers == [b"of the first"]
    assert counted("PersistentCacheWait") == before + 2


def test_the_others_compile_when_the_first_dies(store, first):
    thread, answers = asked(store())
    time.sleep(0.2)
    first.kill()
    thread.join(30)
    assert answers == [None]


def test_nobody_waits_longer_than_the_limit(store, first, monkeypatch):
    monkeypatch.setattr(store_file, "_LIMIT_S", 0.2)
    thread, answers = asked(store())
    thread.join(30)
    assert answers == [None]


def test_who_is_not_about_to_run_a_program_waits_for_nobody(store, first):
    assert store().get("key") is None


def test_a_turn_ends_with_its_block(store, tmp_path):
    kept = store()
    with kept.turn():
        assert kept.get("key") is None
    command = [sys.executable, "-c", textwrap.dedent(FIRST), tmp_path]
    done = subprocess.run(command, input="put\n", text=True, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert kept.get("key") == b"of the first"
