"""What a torch or jax that does not fit is told, and when."""

import importlib.metadata
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from torch_xdist.errors import ReleaseError, XdistError
from torch_xdist.releases import patch_table, probes, tested

ROOT = Path(__file__).resolve().parents[3]


def imported_without(*statements: str, then: str = "import torch_xla") -> tuple[int, str]:
    """The exit code and stderr of a process whose torch and jax were changed before the import."""
    code = "\n".join(["import torch, jax", *statements, then])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    return done.returncode, done.stderr


def test_one_error_lists_every_hook_that_is_missing():
    code, told = imported_without(
        "del torch._C._ExcludeDispatchKeyGuard",
        "del torch._utils._rebuild_parameter",
        "import torch._library.simple_registry as registry; del registry.find_torch_dispatch_rule",
        "del jax.ffi.ffi_lowering",
        "import sys; del sys.modules['torch.optim.adam']._multi_tensor_adam",
    )
    assert code == 1
    assert "ReleaseError: torch-xdist" in told and "5 of what it needs of them is missing:" in told
    for hook in (
        "\n  torch._C._ExcludeDispatchKeyGuard: autocast's kernels call on without autocast",
        "\n  torch._utils._rebuild_parameter: pickling device tensors",
        "\n  torch._library.simple_registry.find_torch_dispatch_rule: ",
        "\n  jax.ffi.ffi_lowering: collectives through shared memory",
        "\n  torch.optim.adam._multi_tensor_adam: a whole Adam update is one row",
    ):
        assert hook in told


def test_the_error_names_what_is_installed_what_was_tested_and_what_to_do():
    _, told = imported_without("del torch._C._nn._parse_to")
    versions = {name: importlib.metadata.version(name) for name in ("torch", "jax")}
    assert f"does not fit torch {versions['torch']} with jax {versions['jax']} on Python 3." in told
    for cell in tested.CELLS:
        assert f"torch {cell.torch} with jax {cell.jax} (Python {cell.python})" in told
    assert "install one of these pairs" in told
    assert "python -m torch_xdist.doctor" in told


def test_a_hook_that_something_stands_in_for_may_be_missing():
    code, told = imported_without(
        "del jax._src.api.clean_up",
        then="import torch_xla; print((torch.ones(2, device='xla') * 2).tolist())",
    )
    assert code == 0, told


def test_a_constructor_that_takes_other_arguments_counts_as_missing():
    _, told = imported_without(
        "torch.Tensor._make_wrapper_subclass = staticmethod(lambda cls, size: torch.empty(size))"
    )
    assert "\n  torch.Tensor._make_wrapper_subclass: device tensors are wrappers" in told


def test_a_hook_of_a_later_moment_is_asked_for_at_that_moment():
    code, told = imported_without(
        "import torch.distributed.tensor._random as r; del r._rng_tracker",
        then="""import torch_xla
print("imported")
from torch.distributed.device_mesh import init_device_mesh
init_device_mesh("xla", (1,))""",
    )
    assert code == 1
    assert "ReleaseError" in told and "torch.distributed.tensor._random._rng_tracker: " in told


def test_nothing_is_missing_here():
    assert [f.probe.path for f in probes.findings() if f.is_fatal] == []


def test_what_is_installed_here_has_every_moment():
    for moment in {patch.when for patch in patch_table.PATCHES}:
        probes.require(moment)


def test_an_error_of_releases_is_an_import_error_and_ours():
    assert issubclass(ReleaseError, ImportError) and issubclass(ReleaseError, XdistError)


@pytest.mark.parametrize("name", ["torch", "jax", "jaxlib"])
def test_the_bounds_of_the_distribution_hold_every_tested_cell_and_nothing_newer(name):
    from packaging.specifiers import SpecifierSet
    from packaging.version import Version

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (bound,) = [d for d in project["dependencies"] if d.startswith((f"{name}>", f"{name}<"))]
    bounds = SpecifierSet(bound.removeprefix(name))
    releases = [Version(cell.torch if name == "torch" else cell.jax) for cell in tested.CELLS]
    assert all(release in bounds for release in releases)
    newest = max(releases)
    assert Version(f"{newest.major}.{newest.minor + 1}") not in bounds


def test_the_pins_are_a_cell():
    pins = dict(
        line.split("==") for line in (ROOT / "constraints.txt").read_text().split() if "==" in line
    )
    found = {"python": "3.11.9", "torch": f"{pins['torch']}+cpu", "jax": pins["jax"]}
    assert tested.cell_of(found) == tested.CELLS[1]


def test_a_pair_that_no_cell_has_is_told_apart():
    assert tested.cell_of({"python": "3.11.9", "torch": "2.13.0", "jax": "0.10.1"}) is None
