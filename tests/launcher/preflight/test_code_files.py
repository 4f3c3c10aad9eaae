"""Which files a command runs, and what they are."""

from pathlib import Path

import pytest

from torch_xdist.launcher.preflight import code_files


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/', 1) if '__' in name[1:] else name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


def names(folder: Path) -> list[str]:
    found = code_files.of("script", str(folder / "train.py"), str(folder))
    assert found["whole"]
    return list(found["files"])


def test_a_script_is_hashed_by_what_is_in_it(tmp_path: Path) -> None:
    write(tmp_path, train="print(1)")
    found = code_files.of("script", str(tmp_path / "train.py"), "/")
    assert found["path"] == str(tmp_path / "train.py")
    first = found["files"]["train.py"]
    write(tmp_path, train="print(2)")
    again = code_files.of("script", str(tmp_path / "train.py"), "/")["files"]["train.py"]
    assert len(first) == 12 and first != again


def test_what_a_script_imports_from_beside_it_belongs_to_it(tmp_path: Path) -> None:
    write(tmp_path, train="import model, os", model="from layers import norm", layers="", other="")
    assert names(tmp_path) == ["train.py", "model.py", "layers.py"]


def test_packages_beside_a_script_are_followed(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    write(tmp_path, train="from net import deep\nimport net.wide")
    for name, text in (("__init__", ""), ("deep", "from . import parts"), ("parts", "")):
        (tmp_path / f"net/{name}.py").write_text(text)
    (tmp_path / "net/wide.py").write_text("from .parts import x\nfrom .. import nothing")
    found = ["train.py", "net/__init__.py", "net/deep.py", "net/wide.py", "net/parts.py"]
    assert names(tmp_path) == found


def test_imports_in_a_circle_end(tmp_path: Path) -> None:
    write(tmp_path, train="import a", a="import b", b="import a, train")
    assert names(tmp_path) == ["train.py", "a.py", "b.py"]


def test_a_script_that_is_no_python_is_hashed_alone(tmp_path: Path) -> None:
    write(tmp_path, train="this is (", model="")
    assert names(tmp_path) == ["train.py"]


def test_of_very_much_code_a_part_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_files, "_MOST_FILES", 2)
    write(tmp_path, train="import a, b", a="", b="")
    found = code_files.of("script", str(tmp_path / "train.py"), "/")
    assert list(found["files"]) == ["train.py", "a.py"] and not found["whole"]


def test_a_script_that_is_missing_is_named() -> None:
    found = code_files.of("script", "/no/train.py", "/")
    assert found == {"why_not": "/no/train.py does not exist there"}


def test_a_module_is_found_from_the_directory_of_the_ranks(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    for name, text in (("__init__", ""), ("__main__", "from pkg import a"), ("a", "")):
        (tmp_path / f"pkg/{name}.py").write_text(text)
    found = code_files.of("module", "pkg", str(tmp_path))
    assert list(found["files"]) == ["pkg/__main__.py", "pkg/__init__.py", "pkg/a.py"]
    found = code_files.of("module", "pkg.a", str(tmp_path))
    assert found["path"] == str(tmp_path / "pkg/a.py") and list(found["files"]) == ["pkg/a.py"]


def test_a_module_that_is_one_file_is_found(tmp_path: Path) -> None:
    write(tmp_path, alone="")
    assert list(code_files.of("module", "alone", str(tmp_path))["files"]) == ["alone.py"]


@pytest.mark.parametrize("name", ["no_such_module", "json.no_such_part"])
def test_a_module_that_is_missing_is_named(name: str) -> None:
    assert code_files.of("module", name, "/") == {"why_not": f"no module {name!r} is there"}


def test_a_program_is_looked_for_on_the_path() -> None:
    assert code_files.of("program", "sh", "/")["path"].endswith("/sh")
    found = code_files.of("program", "no-such-program", "/")
    assert found == {"why_not": "'no-such-program' is no program on PATH there"}
