"""`python -m torch_xdist.doctor`, where everything fits and where it does not."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from torch_xdist.doctor import report
from torch_xdist.doctor.machine import machine
from torch_xdist.releases import tested


def doctor(
    *options: str, cwd: Path | None = None, **environ: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "torch_xdist.doctor", *options],
        cwd=cwd,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=200,
    )


def with_path(folder: Path) -> str:
    """The PYTHONPATH here, after a folder."""
    return os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])


@pytest.fixture(scope="module")
def healthy() -> subprocess.CompletedProcess[str]:
    return doctor("--json", XLA_FLAGS="", TORCH_TOKEN="hush", MASTER_ADDR="tcp://me:pw@host")


def test_an_installation_that_fits_ends_with_0(healthy):
    assert healthy.returncode == 0, healthy.stdout


def test_the_report_has_releases_hooks_devices_and_limits(healthy):
    found = json.loads(healthy.stdout)
    assert found["releases"] == tested.installed()
    assert report.missing(found["hooks"]["found"]) == []
    assert found["devices"]["found"] == {"platform": "cpu", "kinds": ["cpu"], "works": True}
    ranks = found["ranks"]["found"]
    assert (ranks["world_size"], ranks["launcher"]) == (1, "none")
    assert found["machine"]["cores"] == len(os.sched_getaffinity(0))


def test_variables_are_shown_without_their_secrets(healthy):
    shown = json.loads(healthy.stdout)["variables"]
    assert (shown["TORCH_TOKEN"], shown["MASTER_ADDR"]) == ("***", "tcp://***@host")
    assert "hush" not in healthy.stdout and "me:pw" not in healthy.stdout


def broken_torch(folder: Path, *statements: str) -> str:
    """A PYTHONPATH under which torch loses parts as soon as it is imported."""
    code = f"""
import importlib.machinery, sys
class Breaking:
    def find_spec(self, name, path, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module
        def exec_module(torch):
            execute(torch)
            {"; ".join(statements)}
        spec.loader.exec_module = exec_module
        return spec
sys.meta_path.insert(0, Breaking())
"""
    (folder / "sitecustomize.py").write_text(code)
    return with_path(folder)


def test_missing_hooks_are_named_and_end_it_with_1(tmp_path):
    hooks = ("torch._C._nn._parse_to", "torch._utils._rebuild_parameter")
    done = doctor(PYTHONPATH=broken_torch(tmp_path, *(f"del {hook}" for hook in hooks)))
    assert done.returncode == 1, done.stdout
    assert done.stdout.startswith("The installation does not fit:")
    assert "missing: torch._C._nn._parse_to, for: torch's lazy modules move" in done.stdout
    assert "missing: torch._utils._rebuild_parameter, for: pickling" in done.stdout
    assert "ReleaseError" in done.stdout


def test_a_torch_that_cannot_be_imported_is_told(tmp_path):
    (tmp_path / "torch.py").write_text("raise OSError('libtorch.so: cannot open')")
    done = doctor(PYTHONPATH=with_path(tmp_path))
    assert done.returncode == 1
    assert "hooks: " in done.stdout and "libtorch.so: cannot open" in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.long
def test_a_device_that_hangs_ends_at_the_limit(tmp_path):
    (tmp_path / "torch_xla.py").write_text("import threading; threading.Event().wait()")
    done = doctor("--timeout", "20", cwd=tmp_path)
    assert done.returncode == 1
    assert "devices: it did not end within 20 s" in done.stdout


@pytest.mark.long
def test_it_does_not_wait_for_the_other_ranks_of_a_job():
    done = doctor("--json", RANK="1", WORLD_SIZE="4", LOCAL_RANK="1", LOCAL_WORLD_SIZE="4")
    found = json.loads(done.stdout)
    assert found["devices"]["found"]["works"] and done.returncode == 0
    assert (found["ranks"]["found"]["rank"], found["ranks"]["found"]["world_size"]) == (1, 4)
    assert found["ranks"]["found"]["transport"] == "host"


def written(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_limits_of_a_cgroup_are_those_of_the_process_own_folder(tmp_path):
    root = written(
        tmp_path,
        proc__self__cgroup="0::/job\n",
        sys__fs__cgroup__job__memory_dot_max="1073741824\n",
        sys__fs__cgroup__job__cpu_dot_max="150000 100000\n",
    )
    found = machine(root)
    assert (found["cgroup_memory_bytes"], found["cgroup_cores"]) == (2**30, 1.5)


def test_a_cgroup_without_limits_and_a_machine_that_tells_nothing_give_none(tmp_path):
    root = written(tmp_path, sys__fs__cgroup__memory__memory_dot_limit_in_bytes=f"{2**63 - 4096}")
    found = machine(root)
    assert found["cgroup_memory_bytes"] is None and found["cgroup_cores"] is None
    assert found["memory_bytes"] is None and found["shared_memory_bytes"] is None
