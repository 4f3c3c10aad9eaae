"""The records of jobs: a lock per name that looking does not take, and nothing foreign removed."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from torch_xdist.launcher.facts import registry
from torch_xdist.launcher.facts.errors import (
    AmbiguousJobError,
    DuplicateJobError,
    PreflightError,
    UsageError,
)
from torch_xdist.launcher.facts.registry import Registration


@pytest.fixture
def state(tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    return folder


def test_a_name_is_held_by_one_job_and_free_after_it(state: Path) -> None:
    first = Registration(state, "nightly")
    first.publish(ranks=2)
    assert [record["job"] for record in registry.running(state)] == ["nightly"]
    assert registry.find(state, "night")["ranks"] == 2
    with pytest.raises(DuplicateJobError, match="job nightly: it is already running"):
        Registration(state, "nightly")
    first.close()
    assert registry.running(state) == []
    Registration(state, "nightly").close()


def test_a_job_that_has_ended_leaves_its_code_and_no_token(state: Path) -> None:
    job = Registration(state, "nightly")
    job.publish(token="secret", ranks=2)
    job.close(exit_code=137)
    (record,) = registry.records(state)
    assert (record["running"], record["exit_code"], record["ranks"]) == (False, 137, 2)
    assert "token" not in record and "secret" not in job.path.read_text()
    assert registry.find(state, "nightly", ended=True)["exit_code"] == 137
    with pytest.raises(UsageError, match="job 'nightly': no such job runs; there: none"):
        registry.find(state, "nightly")


def test_the_record_of_a_killed_launcher_is_of_no_running_job(state: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path;"
        "from torch_xdist.launcher.facts.registry import Registration;"
        "Registration(Path(sys.argv[1]), 'nightly').publish(ranks=1); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(state)], timeout=60)
    (record,) = registry.records(state)
    assert not record["running"] and "ended" not in record
    Registration(state, "nightly").close()


FOREIGN = ("package.json", "jobs/package.json", "jobs/x.job.json", "jobs/y.job.json", "x.lock")


def test_nothing_foreign_is_removed_or_taken_for_a_job(state: Path) -> None:
    (state / "jobs").mkdir(mode=0o700)
    for name in FOREIGN:
        (state / name).write_text('{"name": "mine"}' if "y" not in name else "no JSON")
    (state / "jobs" / "linked.job.json").symlink_to(state / "package.json")
    (state / "jobs" / "folder.job.json").mkdir()
    for number in range(3):
        Registration(state, f"job{number}").close()
    assert [record["job"] for record in registry.records(state)] == ["job0", "job1", "job2"]
    registry.prune(state, keep=0)
    assert [*registry.records(state)] == []
    assert all((state / name).exists() for name in FOREIGN)
    assert (state / "jobs" / "linked.job.json").is_symlink()
    with pytest.raises(PreflightError, match=r"x\.job\.json is no record of a job; move it away"):
        Registration(state, "x")


def test_a_record_that_is_a_link_is_refused(state: Path) -> None:
    (state / "jobs").mkdir(mode=0o700)
    (state / "jobs" / "x.job.json").symlink_to(state / "elsewhere")
    with pytest.raises(PreflightError, match=r"x\.job\.json cannot be opened: Too many levels"):
        Registration(state, "x")
    assert not (state / "elsewhere").exists()


def test_old_records_go_and_those_of_running_jobs_stay(state: Path) -> None:
    running = Registration(state, "running")
    running.publish(ranks=1)
    for number in range(5):
        job = Registration(state, f"job{number}")
        job.close()
        os.utime(job.path, (number, number))
    registry.prune(state, keep=2)
    assert {r["job"] for r in registry.records(state)} == {"running", "job3", "job4"}
    registry.prune(state, keep=0)
    assert {r["job"] for r in registry.records(state)} == {"running"}
    running.close()


def test_who_looks_at_jobs_disturbs_none_that_starts(state: Path) -> None:
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            list(registry.records(state))
            registry.prune(state, keep=0)

    lookers = [threading.Thread(target=look) for _ in range(4)]
    for looker in lookers:
        looker.start()
    try:
        for _ in range(300):
            job = Registration(state, "nightly")
            job.publish(ranks=1)
            assert json.loads(job.path.read_text())["ranks"] == 1
            job.close()
    finally:
        stop.set()
        for looker in lookers:
            looker.join()


def test_a_record_that_is_being_written_is_read_whole(state: Path) -> None:
    job = Registration(state, "nightly")
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            job.publish(argv=["x" * (number % 7 * 1000)], ranks=number)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(300):
            assert [record["job"] for record in registry.running(state)] == ["nightly"]
    finally:
        stop.set()
        writer.join()
        job.close()


def test_an_ambiguous_beginning_of_a_name_is_refused_and_a_whole_name_is_not(state: Path) -> None:
    jobs = [Registration(state, name) for name in ("night", "nightly", "nightly-2")]
    for job in jobs:
        job.publish(ranks=1)
    assert registry.find(state, "night")["job"] == "night"
    words = "several jobs start with it: nightly, nightly-2; give"
    with pytest.raises(AmbiguousJobError, match=words):
        registry.find(state, "nightl")
    for job in jobs:
        job.close()


def test_a_full_disk_is_an_error_and_leaves_no_half_record(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Registration(state, "nightly")
    real = os.pwrite
    monkeypatch.setattr(registry.os, "pwrite", lambda fd, data, at: real(fd, data[:5], at))
    with pytest.raises(OSError, match="No space left"):
        job.publish(ranks=2)
    job.forget()
    assert [*registry.records(state)] == []
    job.close()


def test_a_state_directory_that_cannot_be_used_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PreflightError, match=r"file/state: Not a directory; set XLA_RUN_STATE_DIR"):
        registry.private_dir(tmp_path / "file" / "state")
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(PreflightError, match=r"link is a link or a file; set XLA_RUN_STATE_DIR"):
        registry.private_dir(tmp_path / "link")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(PreflightError, match=r"open has mode 777, so others may write to it"):
        registry.private_dir(tmp_path / "open")
    monkeypatch.setattr(registry.os, "getuid", lambda: 12345)
    with pytest.raises(PreflightError, match=r"belongs to user \d+; set XLA_RUN_STATE_DIR"):
        registry.private_dir(tmp_path)


def test_a_file_system_without_locks_is_named(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(registry.fcntl, "fcntl", refuse)
    with pytest.raises(PreflightError, match="cannot be locked: Operation not supported; set"):
        Registration(state, "nightly")
