"""The Python of the documents runs, and so does the tour."""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import torch_xdist.core.torch_side.registration  # noqa: F401
from torch_xdist import settings
from torch_xdist.core.tapes import passing
from torch_xdist.ops.table import LOWERINGS

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SNIPPETS = [
    (f"{document.name}-{number}", code)
    for document in DOCUMENTS
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", document.read_text(), re.S))
]
# What starts processes: the page on launching has a test of its own below, and Ray its cluster.
NOT_RUN = re.compile(r"spawn\(|spawn_on_ray\(|xla-run|\.launch\(")
# What changes its process for good, so it gets one of its own, with four devices.
SPMD = [(name, code) for name, code in SNIPPETS if "use_spmd()" in code]
RUN = [one for one in SNIPPETS if one not in SPMD and not NOT_RUN.search(one[1])]


@pytest.mark.parametrize(("name", "code"), SNIPPETS, ids=[name for name, _ in SNIPPETS])
def test_a_snippet_is_valid_python(name, code):
    compile(code, name, "exec")


@pytest.mark.parametrize(("name", "code"), RUN, ids=[name for name, _ in RUN])
def test_a_snippet_runs(name, code, tmp_path, monkeypatch):
    # As users have it.
    monkeypatch.delenv("XDIST_COMPUTE_ONCE")
    settings.reread()
    passing.forget()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "argv", [name])
    names = {"__name__": name}
    exec(compile(code, name, "exec"), names)
    # Its functions hold its names, and so its pending tensors, of which some can only be shown.
    for held in [key for key, value in names.items() if isinstance(value, torch.Tensor)]:
        del names[held]
    monkeypatch.undo()
    settings.reread()


@pytest.mark.parametrize(("name", "code"), SPMD, ids=[name for name, _ in SPMD])
def test_a_snippet_with_four_devices_in_one_process_runs(name, code, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "CPU_NUM_DEVICES": "4", "PJRT_DEVICE": "CPU", "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr


def test_a_rank_of_the_script_of_the_page_on_pods_prints_what_the_page_says(capsys, monkeypatch):
    page = (ROOT / "docs" / "pods.md").read_text()
    script = re.search(r"```python\n(.*?)```", page, re.S)[1]
    monkeypatch.setattr(sys, "argv", ["train.py", "21"])
    exec(compile(script, "train.py", "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out.splitlines()
    assert printed == ["step 0 loss 0.0268", "step 20 loss 0.0000"]
    assert all(f"[a/0] {line}\n" in page for line in printed)


def test_the_script_of_the_launching_page_prints_what_the_page_says(tmp_path):
    page = (ROOT / "docs" / "launching.md").read_text()
    script = re.search(r"```python\n(.*?)```", page, re.S)[1]
    (tmp_path / "train.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    said = done.stderr + done.stdout
    assert said == re.search(r"```\n\$ python train\.py\n(.*?)```", page, re.S)[1]


def test_the_lowerings_of_the_contributing_page_are_rows():
    page = (ROOT / "CONTRIBUTING.md").read_text()
    added = re.search(r"ops/pointwise\.py\n(.*?)It gets JAX arrays", page, re.S)[1]
    code = "\n".join(line[2:] for line in added.splitlines() if line.startswith("+ "))
    rows = {}
    entered = {"jax": jax, "jnp": jnp, "add_rows": rows.update}
    entered["lowers"] = lambda name: lambda lowering: rows.setdefault(name, lowering)
    exec(code, entered)
    assert set(rows) == {"aten.sinc.default", "aten.gelu.default"} <= set(LOWERINGS)
    x = torch.linspace(-2, 2, 7)
    for name, lowering in rows.items():
        expected = getattr(torch.ops.aten, name.split(".")[1])(x)
        torch.testing.assert_close(torch.from_numpy(np.array(lowering(x.numpy()))), expected)


def test_the_modules_the_architecture_page_names_exist():
    page = (ROOT / "docs" / "architecture.md").read_text()
    tables = re.search(r"Inside `xdist/`.*?## Words", page, re.S)[0]
    modules = {file.stem for file in (ROOT / "xdist").rglob("*.py")}
    named = set(re.findall(r"`([a-z_]+)`", tables)) - {"core", "system"}
    assert len(named) > 60 and named <= modules


def test_links_between_documents_lead_somewhere():
    for document in [*DOCUMENTS, ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\(([^)#]+?)\)", document.read_text()):
            if "://" not in target:
                assert (document.parent / target).exists(), f"{document.name} -> {target}"


def test_the_files_the_documents_name_exist():
    named = re.compile(
        r"`((?:scripts|docs|tests|launcher|xdist|loaders|collectives|torch_xla)/[\w./]+)`"
    )
    for document in [*DOCUMENTS, ROOT / "CONTRIBUTING.md"]:
        for target in named.findall(document.read_text()):
            assert (ROOT / target).exists(), f"{document.name} names {target}"


def test_the_tour_does_what_eager_torch_does():
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "tour.py"], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    assert "20, one per step" in done.stdout
