"""Notices of a metadata server that misbehaves, and the stop that one leads to."""

import http.server
import os
import subprocess
import sys
import threading
import time

import pytest

from torch_xdist.launcher.on_host.notices import watch
from torch_xdist.launcher.on_host.notices.watch import Watch


class Server(http.server.ThreadingHTTPServer):
    """Answers by key: a text; or a number, which is its status; or a function of the handler."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers = {"preempted": "FALSE", "maintenance-event": "NONE"}
        self.host = f"127.0.0.1:{self.server_port}"


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        assert self.headers["Metadata-Flavor"] == "Google"
        said = self.server.answers[self.path.removeprefix("/computeMetadata/v1/instance/")]
        if callable(said):
            said = said(self)
        self.send_response(said if isinstance(said, int) else 200)
        self.end_headers()
        self.wfile.write(said if isinstance(said, bytes) else str(said).encode())

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with Server() as found:
        threading.Thread(target=found.serve_forever, daemon=True).start()
        yield found
        found.shutdown()


@pytest.fixture
def said():
    return []


@pytest.fixture
def watched(server, said):
    return Watch({"GCE_METADATA_HOST": server.host}, said.append, every_s=0.01)


def test_a_notice_is_told_once_and_nothing_is_asked_afterwards(server, watched, said):
    server.answers["preempted"] = "TRUE"
    watched._run()
    why = "the cloud has preempted it (instance/preempted is TRUE)"
    assert said == [{"op": "leaves", "why": why, "kind": "preempted"}]


def test_maintenance_that_ends_the_machine_is_a_notice_too(server, watched):
    server.answers["maintenance-event"] = "TERMINATE_ON_HOST_MAINTENANCE"
    assert "maintenance" in watched.look()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (404, "instance/preempted: HTTPError: HTTP Error 404"),
        ('{"error": "none"}', 'instance/preempted is \'{"error": "none"}\''),
        (b"\xff\xfe", "instance/preempted: UnicodeDecodeError"),
        (lambda _: time.sleep(0.5) or "FALSE", "instance/preempted: TimeoutError: timed out"),
    ],
    ids=["missing", "wrong json", "no text", "slow"],
)
def test_a_server_that_misbehaves_is_told_once(answer, words, server, watched, said, monkeypatch):
    monkeypatch.setattr(watch, "_LIMIT_S", 0.1)
    server.answers["preempted"] = answer
    assert [watched.look() for _ in range(4)] == [""] * 4
    [note] = said
    assert note["op"] == "note" and words in note["warning"]
    assert "will not be stopped before this machine is taken away" in note["warning"]


def test_one_key_that_cannot_be_read_leaves_the_other(server, watched):
    server.answers |= {"preempted": 500, "maintenance-event": "TERMINATE_ON_HOST_MAINTENANCE"}
    assert "maintenance" in watched.look()


def test_an_answer_in_between_begins_the_count_anew(server, watched, said):
    for answer in (404, 404, "FALSE", 404, 404):
        server.answers["preempted"] = answer
        watched.look()
    assert said == []


@pytest.mark.parametrize(
    ("environ", "has_tpu", "wanted"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"TPU_SKIP_MDS_QUERY": "1"}, True, False),
        ({"XLA_RUN_NOTICES": "0"}, True, False),
        ({"XLA_RUN_NOTICES": "1"}, False, True),
    ],
)
def test_machines_with_tpus_are_watched_unless_a_variable_says_otherwise(environ, has_tpu, wanted):
    assert watch.is_wanted(environ, has_tpu=has_tpu) is wanted


SCRIPT = """
import pathlib, signal, sys, time
def save(*_):
    pathlib.Path("saved").write_text("step 7")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
pathlib.Path("began").touch()
time.sleep(60)
"""


@pytest.mark.long
def test_a_job_on_a_machine_that_is_taken_away_may_save_and_ends_with_75(server, tmp_path):
    server.answers["preempted"] = lambda _: "TRUE" if (tmp_path / "began").exists() else "FALSE"
    (tmp_path / "train.py").write_text(SCRIPT)
    told = {"XLA_RUN_NOTICES": "1", "GCE_METADATA_HOST": server.host, "PJRT_DEVICE": "CPU"}
    done = subprocess.run(
        [sys.executable, "-m", "torch_xdist.launcher", "-n", "1", "train.py"],
        cwd=tmp_path,
        env={**os.environ, **told},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 75, done.stderr
    assert (tmp_path / "saved").read_text() == "step 7"
    assert "is taken away: the cloud has preempted it" in done.stderr
