"""Where ranks start in a copy, and which commands cannot start there."""

from pathlib import Path
from typing import Any

import pytest

from torch_xdist.launcher.facts import placement
from torch_xdist.launcher.facts.errors import UsageError
from torch_xdist.launcher.facts.job import Job
from torch_xdist.launcher.shipping import paths
from torch_xdist.launcher.shipping.manifest import FILE, FOLDER, Entry, Manifest

CODE = Manifest("code", (Entry("pkg", FOLDER), Entry("pkg/train.py", FILE), Entry("run.sh", FILE)))


@pytest.fixture
def ship(tmp_path: Path) -> str:
    folder = tmp_path.resolve() / "code"
    (folder / "pkg").mkdir(parents=True)
    return str(folder)


def job(ship: str, *argv: str, kind: str = "script", cwd: str = "", **facts: Any) -> Job:
    return Job(kind, list(argv), 1, cwd=cwd or ship, ship=ship, **facts)


def moved(made: Job, **environ: str) -> dict[str, Any]:
    return paths.moved(made, placement.common_order(made, "", range(2)), "/copy", environ)


def test_a_script_in_the_folder_fits(ship: str) -> None:
    paths.check(job(ship, f"{ship}/pkg/train.py"), CODE)
    paths.check(job(ship, f"{ship}/pkg/train.py", cwd=f"{ship}/pkg"), CODE)
    paths.check(job(ship, "train", kind="module"), CODE)


def test_a_command_that_was_typed_elsewhere_is_refused(ship: str) -> None:
    told = "the command was typed in /elsewhere, which is not in it; ranks start at the same place"
    with pytest.raises(UsageError, match=told):
        paths.check(job(ship, f"{ship}/pkg/train.py", cwd="/elsewhere"), CODE)


def test_a_command_that_was_typed_in_an_ignored_folder_is_refused(ship: str) -> None:
    with pytest.raises(UsageError, match="runs, where the command was typed, is left out of it"):
        paths.check(job(ship, f"{ship}/pkg/train.py", cwd=f"{ship}/runs"), CODE)


def test_a_script_elsewhere_is_refused(ship: str) -> None:
    with pytest.raises(UsageError, match=r"the script /elsewhere/x.py is not in it; ship a folder"):
        paths.check(job(ship, "/elsewhere/x.py"), CODE)


@pytest.mark.parametrize("name", ["old.py", "pkg"])
def test_a_script_that_is_left_out_is_refused(ship: str, name: str) -> None:
    with pytest.raises(UsageError, match=f"the script {name} is left out of it .ignored by git"):
        paths.check(job(ship, f"{ship}/{name}"), CODE)


def test_the_script_its_folder_and_the_current_one_are_led_to_the_copy(ship: str) -> None:
    made = job(ship, f"{ship}/pkg/train.py", f"{ship}/pkg", sys_path=[f"{ship}/pkg"])
    order = moved(made)
    assert order["cwd"] == "/copy"
    # What stands behind the script is its own.
    assert order["task"]["argv"] == ["/copy/pkg/train.py", f"{ship}/pkg"]
    assert order["task"]["sys_path"] == ["/copy/pkg"]
    assert "PYTHONPATH" not in order["env"]


def test_only_what_of_pythonpath_lies_in_the_folder_is_led_to_the_copy(ship: str) -> None:
    order = moved(job(ship, f"{ship}/pkg/train.py"), PYTHONPATH=f"/lib:{ship}/pkg:")
    assert order["env"]["PYTHONPATH"] == "/lib:/copy/pkg"
    assert order["task"]["sys_path"] == ["/copy/pkg"]
    assert "PYTHONPATH" not in moved(job(ship, f"{ship}/x"), PYTHONPATH="/lib")["env"]


def test_the_pythonpath_of_the_job_comes_before_that_of_the_caller(ship: str) -> None:
    made = job(ship, f"{ship}/pkg/train.py", env={"PYTHONPATH": f"{ship}/a"})
    assert moved(made, PYTHONPATH=f"{ship}/b")["env"]["PYTHONPATH"] == "/copy/a"


def test_a_program_is_led_to_the_copy_only_where_it_is_named_as_a_path(ship: str) -> None:
    assert moved(job(ship, "./run.sh", kind="program"))["task"]["argv"] == ["/copy/run.sh"]
    assert moved(job(ship, "bash", "run.sh", kind="program"))["task"]["argv"] == ["bash", "run.sh"]
    assert moved(job(ship, "pkg", kind="module"))["task"]["argv"] == ["pkg"]


def test_a_folder_that_is_reached_over_a_link_is_the_same(ship: str, tmp_path: Path) -> None:
    (tmp_path / "here").symlink_to(ship)
    made = job(ship, f"{tmp_path}/here/pkg/train.py", cwd=f"{tmp_path}/here/pkg")
    paths.check(made, CODE)
    order = moved(made)
    assert order["cwd"] == "/copy/pkg" and order["task"]["argv"] == ["/copy/pkg/train.py"]
