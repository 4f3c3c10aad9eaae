"""The Python of the documents runs, and so does the tour."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SNIPPETS = [
    (f"{document.name}-{number}", code)
    for document in DOCUMENTS
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", document.read_text(), re.S))
]
# What starts processes, or needs files that only its reader has.
NOT_RUN = re.compile(r"spawn\(|xla-run|\.launch\(")
RUN = [(name, code) for name, code in SNIPPETS if not NOT_RUN.search(code)]


@pytest.mark.parametrize(("name", "code"), SNIPPETS, ids=[name for name, _ in SNIPPETS])
def test_a_snippet_is_valid_python(name, code):
    compile(code, name, "exec")


@pytest.mark.parametrize(("name", "code"), RUN, ids=[name for name, _ in RUN])
def test_a_snippet_runs(name, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, name, "exec"), {"__name__": name})


def test_links_between_documents_lead_somewhere():
    for document in [*DOCUMENTS, ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\(([^)#]+?)\)", document.read_text()):
            if "://" not in target:
                assert (document.parent / target).exists(), f"{document.name} -> {target}"


def test_the_files_the_documents_name_exist():
    named = re.compile(r"`((?:scripts|docs|tests|launcher|xdist|loaders)/[\w./]+)`")
    for document in [*DOCUMENTS, ROOT / "CONTRIBUTING.md"]:
        for target in named.findall(document.read_text()):
            assert (ROOT / target).exists(), f"{document.name} names {target}"


def test_the_tour_does_what_eager_torch_does():
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "tour.py"], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    assert "20, one per step" in done.stdout
