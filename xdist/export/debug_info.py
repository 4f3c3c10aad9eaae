"""Text at places of a graph: rows of `torch.ops.xla.write_mlir_debuginfo`, and JAX's scopes.

The text travels through JAX as a scope between two tokens; `modules` makes it the location of the
operations.
"""

import contextlib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import jax
import torch

from torch_xdist.core.trace.trace import Row
from torch_xdist.export.modules import BEGIN, END
from torch_xdist.ops.table import lowers

OPERATOR = "xla.write_mlir_debuginfo.default"

_library = torch.library.Library("xla", "FRAGMENT")
_library.define("write_mlir_debuginfo(Tensor x, str data) -> Tensor")


@lowers(OPERATOR)
def _row(x: jax.Array, data: str) -> jax.Array:
    return x


def write_mlir_debuginfo(x: torch.Tensor, data: str) -> torch.Tensor:
    """A device tensor, at whose operation StableHLO has `data` as its location."""
    return torch.ops.xla.write_mlir_debuginfo(x, data)  # type: ignore[no-any-return]


@torch.library.impl(_library, "write_mlir_debuginfo", "CompositeExplicitAutograd")
def write_mlir_debuginfo_tensor(x: torch.Tensor, data: str) -> torch.Tensor:
    """Elsewhere: the tensor itself."""
    return x


@torch.library.impl(_library, "write_mlir_debuginfo", "Meta")
def write_mlir_debuginfo_meta(x: torch.Tensor, data: str) -> torch.Tensor:
    """Of its type."""
    return torch.empty_like(x)


torch.library.register_autograd(
    "xla::write_mlir_debuginfo", lambda ctx, grad: (grad, None), lib=_library
)


def labels_of(rows: Mapping[int, Row], first: Mapping[int, int]) -> dict[int, str]:
    """The text for each row that some was written for, by its first slot."""
    return {
        first.get(row[1], row[1]): row[0].args[1]
        for row in rows.values()
        if row[0].name == OPERATOR
    }


def scope(text: str | None) -> AbstractContextManager[Any]:
    """Where the operations are recorded that have this text as their location."""
    return contextlib.nullcontext() if text is None else jax.named_scope(BEGIN + text + END)
