"""`--ship` and `--ship-limit`: what they mean, and with what they do not go."""

from collections.abc import Callable
from pathlib import Path

import click
import pytest

from torch_xdist.launcher.facts.errors import UsageError
from torch_xdist.launcher.facts.host_list import Host
from torch_xdist.launcher.facts.job import Job
from torch_xdist.launcher.shipping.options import Asked, Size


def job(folder: Path, way: str = "ssh", hosts: bool = True) -> Job:
    return Job("script", ["x"], 1, cwd=str(folder), way=way, hosts=[Host("a")] if hosts else [])


def test_the_folder_is_named_by_its_real_path(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "here").symlink_to("code")
    made = Asked("here", 7).of(job(tmp_path))
    assert (made.ship, made.ship_limit_bytes) == (str(tmp_path.resolve() / "code"), 7)
    assert Asked("", 7).of(job(tmp_path)) == job(tmp_path)
    assert Job.from_json(made.to_json()) == made


@pytest.mark.parametrize(("name", "told"), [("no", "does not exist"), ("file", "is no folder")])
def test_what_is_no_folder_is_refused(tmp_path: Path, name: str, told: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=f"--ship {name}: it {told}; name the folder of your code"):
        Asked(name, 7).of(job(tmp_path))


def test_without_other_hosts_there_is_nothing_to_ship(tmp_path: Path) -> None:
    told = r"the command runs on this host, where the folder is; name other hosts \(--hosts"
    with pytest.raises(UsageError, match=told):
        Asked(".", 7).of(job(tmp_path, hosts=False))


def test_nodes_that_come_by_themselves_take_no_code(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="it does not go with --nnodes; every node runs the code"):
        Asked(".", 7).of(job(tmp_path, "nodes"))


@pytest.mark.parametrize(
    ("text", "size"), [("800", 800), ("1.5MB", 1_500_000), ("2 gb", 2_000_000_000), ("3kB", 3000)]
)
def test_a_limit_is_written_with_a_unit_or_in_bytes(text: str, size: int) -> None:
    assert Size().convert(text, None, None) == size


def test_a_limit_that_is_no_size_is_refused() -> None:
    with pytest.raises(click.BadParameter, match="'2 elephants' is no size; give bytes, or a unit"):
        Size().convert("2 elephants", None, None)


def test_pods_take_no_code_and_a_missing_folder_starts_nothing(start: Callable) -> None:
    options = ("--k8s", "x", "--image", "i", "--nodes", "1", "-n", "1", "--ship", ".")
    ended = start("", *options).end()
    assert ended.code == 2 and "--ship .: it does not go with --k8s; the pods run" in ended.err
    ended = start("", "--hosts", "nosuch", "-n", "1", "--ship", "nowhere").end()
    assert ended.code == 2 and "--ship nowhere: it does not exist" in ended.err


def test_a_dry_run_says_what_would_be_shipped(start: Callable) -> None:
    ended = start("", "--hosts", "a", "-n", "1", "--ship", ".", "--dry-run").end()
    assert ended.code == 0, ended.err
    assert "every host gets a copy of " in ended.out and " files (" in ended.out
