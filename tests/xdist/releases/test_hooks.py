"""The table of what is needed of torch and jax: no private name is read that it lacks."""

import ast
from pathlib import Path

import pytest

from torch_xdist.releases import hooks, patch_table

ROOT = Path(__file__).resolve().parents[3]
PRODUCT = [
    file
    for folder in ("xdist", "collectives", "loaders", "launcher", "torch_xla")
    for file in sorted((ROOT / folder).rglob("*.py"))
    # The table itself, and what looks its rows up.
    if "releases" not in file.parts
]
LIBRARIES = ("torch", "jax", "jaxlib", "functorch")
# Without an underscore, and yet no public interface.
PRIVATE_MODULES = (
    "jaxlib.", "jax.interpreters.", "jax.experimental.", "functorch.",
)  # fmt: skip
# Operators have names that begin with an underscore too; their schemas are what is public.
OPERATORS = "torch.ops."


def private_names(source: str) -> set[str]:
    """The dotted names of torch and jax, not of their public interface, that a file reads."""
    tree = ast.parse(source)
    known, found = {}, set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
            for alias in node.names:
                root = alias.name.partition(".")[0]
                known[alias.asname or root] = alias.name if alias.asname else root
        if isinstance(node, ast.ImportFrom) and node.module:
            names = {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
            known |= names
            found |= set(names.values())
    for chain in (ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)):
        root, _, rest = chain.partition(".")
        if root in known and rest.replace(".", "").isidentifier():
            found.add(f"{known[root]}.{rest}")
    return {name for name in found if is_private(name)}


def is_private(name: str) -> bool:
    root, *parts = name.split(".")
    if root not in LIBRARIES or name.startswith(OPERATORS) or name.endswith("__"):
        return False
    hidden = any(part.startswith("_") and not part.startswith("__") for part in parts)
    return hidden or name.startswith(PRIVATE_MODULES)


def asked_for(name: str) -> bool:
    """Whether a row asks for the name, for what leads to it or for something of it."""
    paths = [*(p.path for p in hooks.PROBES), *(p.target for p in patch_table.PATCHES)]
    return any(
        f"{path}.".startswith(f"{name}.") or f"{name}.".startswith(f"{path}.") for path in paths
    )


def test_every_private_name_that_is_read_is_in_the_table():
    missing = {
        (name, str(file.relative_to(ROOT)))
        for file in PRODUCT
        for name in private_names(file.read_text())
        if not asked_for(name) and not found_otherwise(name)
    }
    assert missing == set()


def found_otherwise(name: str) -> bool:
    """Whether a patch of many modules has it."""
    ends = [p.target.rpartition(".*.")[2] for p in patch_table.PATCHES if ".*." in p.target]
    return name.rpartition(".")[2] in ends


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("from jax._src import config\nconfig.x", {"jax._src.config", "jax._src.config.x"}),
        ("import torch\ntorch._C._nn", {"torch._C._nn", "torch._C"}),
        ("import torch.utils._pytree as pytree", {"torch.utils._pytree"}),
        ("from torch import _C as c\nc.f()", {"torch._C", "torch._C.f"}),
        ("from jax.interpreters import mlir", {"jax.interpreters.mlir"}),
        ("import torch\ntorch.ops.aten._to_copy\ntorch.nn.Linear\ntorch.__version__", set()),
    ],
)
def test_a_private_name_in_a_source_is_seen(source, names):
    assert private_names(source) == names


def test_a_name_that_no_row_has_is_told():
    assert not asked_for("torch._C._something") and asked_for("torch._C")
