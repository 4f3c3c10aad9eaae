"""Log folders: a new one per job, and only our own files are ever removed, of jobs that ended."""

import os
from pathlib import Path

import pytest

from torch_xdist.launcher.facts import log_folders
from torch_xdist.launcher.facts.errors import AmbiguousJobError
from torch_xdist.launcher.facts.log_folders import LogFolder


def made(root: Path, name: str, ended_s: float) -> Path:
    """The log folder of a job that ended then, with two attempts."""
    folder = LogFolder(root, name)
    for attempt in range(2):
        (folder.path / f"attempt-{attempt}").mkdir()
        for file in ("rank-0.log", "rank-11.log", "rank-0.times", "rank-0.error.json"):
            (folder.path / f"attempt-{attempt}" / file).write_text("x")
    (folder.path / log_folders.EVENTS).write_text("{}")
    folder.close()
    os.utime(folder.path / log_folders.MARK, (ended_s, ended_s))
    return folder.path


def test_a_second_job_of_a_name_gets_a_folder_of_its_own(tmp_path: Path) -> None:
    folders = [LogFolder(tmp_path / "logs", "nightly") for _ in range(3)]
    assert [folder.path.name for folder in folders] == ["nightly", "nightly.2", "nightly.3"]
    for folder in folders:
        assert folder.path.stat().st_mode & 0o777 == 0o700
        folder.close()


def test_the_logs_of_the_jobs_that_ended_first_go(tmp_path: Path) -> None:
    paths = [made(tmp_path, f"job{number}", float(number)) for number in range(5)]
    log_folders.prune(tmp_path, keep=2)
    assert [path.exists() for path in paths] == [False, False, False, True, True]


def test_the_logs_of_a_job_that_runs_stay_however_old(tmp_path: Path) -> None:
    running = LogFolder(tmp_path, "long")
    os.utime(running.path / log_folders.MARK, (0, 0))
    os.utime(running.path, (0, 0))
    for number in range(3):
        made(tmp_path, f"job{number}", 100.0 + number)
    log_folders.prune(tmp_path, keep=0)
    assert [path.name for path in tmp_path.iterdir()] == ["long"]
    running.close()
    log_folders.prune(tmp_path, keep=0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("foreign", ["photos", "attempt-0", ".xla-run-job-elsewhere"])
def test_a_folder_without_our_mark_stays(tmp_path: Path, foreign: str) -> None:
    (tmp_path / foreign).mkdir()
    (tmp_path / foreign / "events.jsonl").write_text("mine")
    (tmp_path / "linked").symlink_to(made(tmp_path / "other", "job", 1.0))
    log_folders.prune(tmp_path, keep=0)
    assert (tmp_path / foreign / "events.jsonl").exists()
    assert (tmp_path / "linked" / "events.jsonl").exists()


def test_what_a_job_has_put_beside_its_logs_stays(tmp_path: Path) -> None:
    folder = made(tmp_path, "job", 1.0)
    mine = [folder / "profile.pb", folder / "attempt-0" / "rank-0.log.gz", folder / "attempt-x"]
    for path in mine:
        path.write_text("mine")
    log_folders.prune(tmp_path, keep=0)
    assert all(path.exists() for path in mine)
    assert sorted(path.name for path in folder.rglob("*") if path.is_file()) == [
        *("attempt-x", "profile.pb", "rank-0.log.gz")
    ]


def test_a_link_in_place_of_an_attempt_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "rank-0.log").write_text("mine")
    folder = made(tmp_path / "logs", "job", 1.0)
    (folder / "attempt-2").symlink_to(tmp_path / "elsewhere")
    log_folders.prune(tmp_path / "logs", keep=0)
    assert (tmp_path / "elsewhere" / "rank-0.log").exists()


def test_logs_that_are_not_kept_go_at_the_end(tmp_path: Path) -> None:
    folder = LogFolder(tmp_path, "job")
    folder.close(keep=False)
    assert not folder.path.exists()


def test_attempts_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for number in (10, 9, 0):
        (tmp_path / f"attempt-{number}").mkdir()
    (tmp_path / "attempt-x").mkdir()
    found = [path.name for path in log_folders.attempts(tmp_path)]
    assert found == ["attempt-0", "attempt-9", "attempt-10"]


def test_kept_logs_are_found_by_their_jobs_name_newest_last(tmp_path: Path) -> None:
    paths = [made(tmp_path, "night", 3.0), made(tmp_path, "night", 1.0)]
    other = made(tmp_path, "nightly", 9.0)
    assert log_folders.kept(tmp_path, "night") == [paths[1], paths[0]]
    assert log_folders.kept(tmp_path, "nightl") == [other]
    assert log_folders.kept(tmp_path, "gone") == []


def test_the_beginning_of_the_names_of_several_jobs_is_refused(tmp_path: Path) -> None:
    paths = [made(tmp_path, name, 1.0) for name in ("night-1", "night-1", "night-2")]
    words = "job 'night': several jobs start with it: night-1, night-2; give one name"
    with pytest.raises(AmbiguousJobError, match=words):
        log_folders.kept(tmp_path, "night")
    assert log_folders.kept(tmp_path, "night-1.2") == [paths[1]]
    assert len(log_folders.kept(tmp_path, "night-1")) == 2
