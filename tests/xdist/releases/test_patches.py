"""The table of changes to torch: it is complete, and each row says the truth."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import torch_xla  # noqa: F401 it makes the changes
from torch_xdist.releases import patch_table, patches

ROOT = Path(__file__).resolve().parents[3]
PRODUCT = [
    file
    for folder in ("xdist", "collectives", "loaders", "launcher", "torch_xla")
    for file in sorted((ROOT / folder).rglob("*.py"))
]
LIBRARIES = {"torch", "jax", "jaxlib"}
# Its `setattr` is on names of torch.
INSTALLER = ROOT / "xdist/releases/patches.py"


def imported_names(tree: ast.AST) -> set[str]:
    """The names under which a file knows parts of torch and jax."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            roots = {(a.asname or a.name).split(".")[0]: a.name.split(".")[0] for a in node.names}
            names |= {name for name, root in roots.items() if root in LIBRARIES}
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in LIBRARIES:
            names |= {a.asname or a.name for a in node.names}
    return names


def root_of(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def changes_of(source: str) -> list[str]:
    """The statements that assign to, delete from or extend a part of torch or jax."""
    tree = ast.parse(source)
    known = imported_names(tree)
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
            found += [node] if root_of(node) in known else []
        if isinstance(node, ast.Call) and node.args:
            named = isinstance(node.func, ast.Name) and node.func.id in ("setattr", "delattr")
            found += [node] if named and root_of(node.args[0]) in known else []
            # A private list or table of theirs; jax.config.update and the like are public.
            grows = isinstance(node.func, ast.Attribute) and node.func.attr in (
                "append", "extend", "insert", "add", "update", "setdefault",
            )  # fmt: skip
            private = "._" in ast.unparse(node.func)
            found += [node] if grows and private and root_of(node.func) in known else []
    return [ast.unparse(node) for node in found]


@pytest.mark.parametrize("file", PRODUCT, ids=[str(f.relative_to(ROOT)) for f in PRODUCT])
def test_no_file_changes_torch_or_jax_by_itself(file):
    assert file == INSTALLER or changes_of(file.read_text()) == []


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch.load = print",
        "import torch.optim.adam as adam\nadam._multi_tensor_adam = print",
        "from torch.distributed.tensor import DTensor\nDTensor.device = None",
        "import torch\nsetattr(torch.nn, 'Linear', None)",
        "import torch\ndel torch.nn.Linear",
        "from jax._src import config\nconfig._table['x'] = 1",
        "import torch.optim.optimizer as o\no._foreach_supported_types.append(1)",
    ],
)
def test_a_change_in_the_source_is_seen(source):
    assert len(changes_of(source)) == 1


# Prints what of this package stands anywhere in torch and jax, and is not the work of a row.
_LOOK = """
import inspect, json, sys, types, warnings
import torch, jax, torch_xla
warnings.simplefilter("ignore")
exec(sys.argv[2])
from torch_xdist.releases import patch_table, patches

made = [patch.target for patch in patch_table.PATCHES if patches.is_made(patch.target)]
of_rows = {
    id(inspect.getattr_static(*place)) for target in made for place in patches.places(target)
}
# torch's registries of devices, backends and init methods.
entered = {"torch.xla", "torch.distributed.distributed_c10d.Backend.XLA"}

def is_ours(value):
    if isinstance(value, (property, classmethod, staticmethod)):
        value = value.fget if isinstance(value, property) else value.__func__
    if isinstance(value, types.FunctionType):
        file = value.__code__.co_filename
        return file.startswith(sys.argv[1]) and "site-packages" not in file
    kind = value if isinstance(value, type) else type(value)
    return str(inspect.getattr_static(kind, "__module__", "")).startswith("torch_xdist")

seen, found = set(of_rows), set()
def look(path, holder):
    if id(holder) in seen or path in entered:
        return
    seen.add(id(holder))
    for name, value in list(vars(holder).items()):
        values = value if isinstance(value, (list, set)) else [value]
        # A class may keep what a row made for a static method of its own.
        kept = value.__func__ if isinstance(value, staticmethod) else value
        if of_rows.isdisjoint((id(value), id(kept))) and any(map(is_ours, values)):
            found.add(f"{path}.{name}")
        elif isinstance(value, type) and value.__module__.split(".")[0] in ("torch", "jax"):
            look(f"{value.__module__}.{value.__qualname__}", value)
for name, module in list(sys.modules.items()):
    if name.split(".")[0] in ("torch", "jax", "jaxlib") and isinstance(module, types.ModuleType):
        look(name, module)
print(json.dumps([sorted(found - entered), made]))
"""


def looked_at(code: str) -> tuple[list[str], set[str]]:
    """What of ours is in torch after `code` by no row, and which rows say that they are made."""
    command = [sys.executable, "-c", _LOOK, str(ROOT), code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    found, made = json.loads(done.stdout.splitlines()[-1])
    return found, set(made)


def test_what_is_ours_in_torch_after_the_import_is_in_the_table():
    found, made = looked_at("")
    assert found == []
    assert made == {p.target for p in patch_table.PATCHES if p.when == "import" and fits(p)}


def fits(patch: patch_table.Patch) -> bool:
    """Whether this release of torch needs the change of a row, and has its target."""
    return patch.is_needed and (not patch.absent or patches.has(patch.target))


def test_every_row_is_made_once_its_moment_has_come():
    code = """
import os
os.environ["CPU_NUM_DEVICES"] = "2"
from torch_xdist.ranks import replicas
replicas.spawn_threads(lambda rank: None)
import torch._dynamo.variables.builder
import torch.distributed.fsdp
import torch.nested._internal.sdpa
import torch.nn.attention.flex_attention
from torch.distributed.device_mesh import init_device_mesh
init_device_mesh("xla", (1,))
from torch_xdist.ranks import sharded_grad_scaler
sharded_grad_scaler.register()
import threading
from torch_xdist.debug import asked_profile
asked_profile.take(0.0, threading.Event(), python_calls=False)
import torch
from torch_xdist.releases.hooks import _Wrapped
torch.Tensor._make_wrapper_subclass(_Wrapped, (1,), device="xla:0")
"""
    found, made = looked_at(code)
    assert found == []
    assert made == {p.target for p in patch_table.PATCHES if fits(p)}


def test_a_change_that_no_row_makes_is_found():
    found, _ = looked_at("import torch_xdist.metrics as m; torch.nn.Linear.extra = m.clear_all")
    assert found == ["torch.nn.modules.linear.Linear.extra"]


@pytest.mark.parametrize("patch", patch_table.PATCHES, ids=[p.target for p in patch_table.PATCHES])
def test_the_module_that_a_row_names_makes_the_change(patch):
    text = (ROOT / "xdist" / f"{patch.owner.replace('.', '/')}.py").read_text()
    assert "patches." in text and patch.target.rpartition(".")[2] in text


def test_a_target_that_is_not_in_the_table_is_refused():
    with pytest.raises(KeyError, match=r"torch\.add"):
        patches.replace("torch.add", None)


def test_a_second_replacement_of_a_target_changes_nothing():
    before = torch.load
    patches.replace("torch.load", None)
    assert torch.load is before


def test_a_function_is_found_behind_a_module_of_the_same_name():
    assert callable(patches.object_at("torch._higher_order_ops.scan.scan"))


def test_a_missing_module_is_named():
    with pytest.raises(AttributeError, match="no module 'torsh' is loaded"):
        patches.object_at("torsh.add")


def test_code_is_renamed_in_functions_inside_it_too_and_nowhere_else():
    def outer(values):
        from os.path import join

        def inner():
            return join("a", "b")

        return sorted(values, key=lambda value: value.real), inner

    code = outer.__code__
    assert patches.renamed(code, {"posix": "nt", "values": "others"}) is code
    other = patches.renamed(code, {"os.path": "posixpath", "real": "imag"})
    assert other is not code and "posixpath" in other.co_names and "os.path" not in other.co_names
    outer.__code__ = other
    found, inner = outer([1 + 2j, 3 + 1j])
    assert (found, inner()) == ([3 + 1j, 1 + 2j], "a/b")
