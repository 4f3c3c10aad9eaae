"""Products by groups of rows by torch_xla's names: `gmm`, its transpose `tgmm`, their gradient."""

from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax.experimental.pallas.ops.tpu.megablox.gmm import gmm as gmm_kernel
from jax.experimental.pallas.ops.tpu.megablox.gmm import tgmm as tgmm_kernel

from torch_xdist.core.torch_side.xla_namespace import define
from torch_xdist.errors import ArgumentError
from torch_xdist.kernels.rows import form_here, is_on_device, kernel_row
from torch_xdist.kernels.torch_ops import differentiate, warn_of_no_values
from torch_xdist.ops import grouped

_Tiling = tuple[int, int, int]
_Maybe = torch.Tensor | None
_DEFAULT_TILING = 512, 512, 512


def _round_up_to_multiple_of_128_within_limit(x: int, limit: int) -> int:
    """A tile for a size of `x`: the next multiple of 128 below `limit`, else one that divides it.

    Where none from `limit` down to 512 divides `x` it is `limit`.
    """
    if limit < 128 or limit % 128:
        raise ArgumentError(f"a limit of {limit} for tiles: it must be a multiple of 128")
    if x < limit:
        return max(128, x + -x % 128)
    return next((size for size in range(limit, 511, -128) if x % size == 0), limit)


def _get_tiling_size_for_gmm_kernel(m: int, k: int, n: int, g: int) -> _Tiling:
    """Tiles for [m, k] times [g, k, n]: rows for twice the mean of a group, at most 512."""
    rows = min(_round_up_to_multiple_of_128_within_limit(2 * m // g, 512), m)
    inner, outer = (_round_up_to_multiple_of_128_within_limit(size, 2048) for size in (k, n))
    return rows, inner, outer


def _local_sizes(sizes: jax.Array, offset: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """(how many rows come before the groups from `offset` on, the sizes of `count` of these)."""
    first = offset.reshape(()).astype(jnp.int32)
    before = jnp.where(jnp.arange(len(sizes)) < first, sizes, 0).sum(dtype=sizes.dtype)
    return before, jax.lax.dynamic_slice_in_dim(sizes, first, count)


def _plain_gmm(
    lhs: jax.Array,
    rhs: jax.Array,
    sizes: jax.Array,
    offset: jax.Array | None,
    *,
    tiling: _Tiling,
    transpose_rhs: bool,
) -> jax.Array:
    rhs = rhs.swapaxes(1, 2) if transpose_rhs else rhs
    if offset is not None:
        # One more group, of the rows before, whose matrix is 0.
        before, sizes = _local_sizes(sizes, offset, rhs.shape[0])
        sizes = jnp.concatenate([before[None], sizes])
        rhs = jnp.concatenate([jnp.zeros_like(rhs[:1]), rhs])
    return grouped.by_rows(lhs, rhs, sizes).astype(lhs.dtype)


def _pallas_gmm(
    lhs: jax.Array,
    rhs: jax.Array,
    sizes: jax.Array,
    offset: jax.Array | None,
    *,
    tiling: _Tiling,
    transpose_rhs: bool,
) -> jax.Array:
    rows = lhs.shape[0]
    # The kernel wants whole tiles of rows; those that are added belong to no group.
    lhs = jnp.pad(lhs, ((0, -rows % tiling[0]), (0, 0)))
    start = None if offset is None else offset.astype(jnp.int32).reshape(1)
    sizes = sizes.astype(jnp.int32)
    found = gmm_kernel(lhs, rhs, sizes, lhs.dtype, tiling, start, transpose_rhs=transpose_rhs)
    # The kernel leaves the rows of no group as it finds them.
    is_of_group = jnp.arange(rows) < sizes.sum()
    return jnp.where(is_of_group[:, None], found[:rows], 0)


def _plain_tgmm(
    lhs: jax.Array,
    rhs: jax.Array,
    sizes: jax.Array,
    offset: jax.Array | None,
    *,
    tiling: _Tiling,
    groups: int,
) -> jax.Array:
    found = grouped.by_contraction(lhs.T, rhs, sizes).astype(lhs.dtype)
    first = 0 if offset is None else offset.reshape(()).astype(jnp.int32)
    return jax.lax.dynamic_slice_in_dim(found, first, groups)


def _pallas_tgmm(
    lhs: jax.Array,
    rhs: jax.Array,
    sizes: jax.Array,
    offset: jax.Array | None,
    *,
    tiling: _Tiling,
    groups: int,
) -> jax.Array:
    missing = -rhs.shape[0] % tiling[0]
    lhs, rhs = jnp.pad(lhs, ((0, 0), (0, missing))), jnp.pad(rhs, ((0, missing), (0, 0)))
    start = None if offset is None else offset.astype(jnp.int32).reshape(1)
    return tgmm_kernel(lhs, rhs, sizes.astype(jnp.int32), lhs.dtype, tiling, start, groups)


def _check(name: str, lhs: torch.Tensor, rhs: torch.Tensor, rhs_dims: int) -> None:
    if lhs.dim() != 2 or rhs.dim() != rhs_dims:
        raise ArgumentError(
            f"{name}: lhs has shape {list(lhs.shape)} and rhs {list(rhs.shape)}; 2 dims and"
            f" {rhs_dims} are needed"
        )


def gmm(
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    group_sizes: torch.Tensor,
    tiling: _Tiling | None = None,
    group_offset: _Maybe = None,
    transpose_rhs: bool = False,
) -> torch.Tensor:
    """Each group of rows of `lhs` times its own matrix; rows of no group give 0.

    Args:
        lhs: [m, k].
        rhs: [g, k, n], or [g, n, k] with `transpose_rhs`.
        group_sizes: how many rows each group has, in order.
        tiling: of m, k and n, for the kernel of a TPU.
        group_offset: the group that `rhs` begins with, where it holds a part of them.

    Returns [m, n]. Without a gradient: `GMM.apply` and `torch.ops.xla.gmm` have one.
    """
    _check("gmm", lhs, rhs, 3)
    if not is_on_device(lhs):
        return _gmm_in_torch(lhs, rhs, group_sizes, group_offset, transpose_rhs)
    (m, k), n = lhs.shape, rhs.shape[1 if transpose_rhs else 2]
    tiles = tuple(tiling or _get_tiling_size_for_gmm_kernel(m, k, n, rhs.shape[0]))
    static = {"tiling": (min(tiles[0], m), *tiles[1:]), "transpose_rhs": transpose_rhs}
    operands = lhs, rhs, group_sizes, group_offset
    return kernel_row("xla::gmm", form_here(_pallas_gmm, _plain_gmm), operands, **static)[0]


def tgmm(
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    group_sizes: torch.Tensor,
    tiling: _Tiling = _DEFAULT_TILING,
    group_offset: _Maybe = None,
    num_actual_groups: int | None = None,
) -> torch.Tensor:
    """The columns of each group in `lhs` times its rows of `rhs`.

    Args:
        lhs: [k, m]; rhs: [m, n].
        group_sizes: how many of the m each group has, in order.
        group_offset, num_actual_groups: the first group that is wanted, and how many are.

    Returns [groups, k, n].
    """
    _check("tgmm", lhs, rhs, 2)
    groups = num_actual_groups or len(group_sizes)
    if not is_on_device(lhs):
        first = 0 if group_offset is None else int(group_offset)
        parts = zip(_split(lhs.t(), group_sizes), _split(rhs, group_sizes))
        return torch.stack([a.t() @ b for a, b in parts][first : first + groups])
    (k, m), n = lhs.shape, rhs.shape[1]
    tiles = tuple(map(min, tiling, (m, k, n)))
    operands = lhs, rhs, group_sizes, group_offset
    form = form_here(_pallas_tgmm, _plain_tgmm)
    return kernel_row("xla::tgmm", form, operands, tiling=tiles, groups=groups)[0]


def _split(rows: torch.Tensor, sizes: torch.Tensor) -> list[torch.Tensor]:
    """The rows of each group."""
    counts = sizes.tolist()
    return list(rows[: sum(counts)].split(counts))


def _gmm_in_torch(
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    group_sizes: torch.Tensor,
    group_offset: _Maybe,
    transpose_rhs: bool,
) -> torch.Tensor:
    rhs = rhs.transpose(1, 2) if transpose_rhs else rhs
    first = 0 if group_offset is None else int(group_offset)
    found = [
        rows @ rhs[i - first]
        if 0 <= i - first < len(rhs)
        else rows.new_zeros(len(rows), rhs.shape[2])
        for i, rows in enumerate(_split(lhs, group_sizes))
    ]
    done = torch.cat(found)
    return torch.cat([done, done.new_zeros(len(lhs) - len(done), rhs.shape[2])])


def gmm_backward(
    grad: torch.Tensor,
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    group_sizes: torch.Tensor,
    tiling: _Tiling = _DEFAULT_TILING,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of `lhs` and `rhs`."""
    grad_lhs = gmm(grad, rhs.transpose(-1, -2), group_sizes, tiling)
    return grad_lhs, tgmm(lhs.t(), grad, group_sizes, tiling)


class GMM(torch.autograd.Function):
    """`gmm` with a gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        lhs: torch.Tensor,
        rhs: torch.Tensor,
        group_sizes: torch.Tensor,
        tiling: _Tiling = _DEFAULT_TILING,
    ) -> torch.Tensor:
        ctx.save_for_backward(lhs, rhs, group_sizes)
        ctx.tiling = tiling
        return gmm(lhs, rhs, group_sizes, tiling)

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[_Maybe, ...]:
        lhs, rhs, group_sizes = ctx.saved_tensors
        rest = group_sizes, ctx.tiling
        grad_lhs = GMM.apply(grad_output, rhs.transpose(-1, -2), *rest)  # type: ignore
        return grad_lhs, _TGMM.apply(lhs, grad_output, *rest), None, None  # type: ignore


class _TGMM(torch.autograd.Function):
    """`tgmm` with a gradient; `lhs` is [m, k], as that of `gmm`."""

    @staticmethod
    def forward(
        ctx: Any, lhs: torch.Tensor, rhs: torch.Tensor, group_sizes: torch.Tensor, tiling: _Tiling
    ) -> torch.Tensor:
        ctx.save_for_backward(lhs, rhs, group_sizes)
        ctx.tiling = tiling
        return tgmm(lhs.t(), rhs, group_sizes, tiling)

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[_Maybe, ...]:
        lhs, rhs, group_sizes = ctx.saved_tensors
        rest = group_sizes, ctx.tiling
        grad_lhs = GMM.apply(rhs, grad_output.transpose(-1, -2), *rest)  # type: ignore
        return grad_lhs, GMM.apply(lhs, grad_output, *rest), None, None  # type: ignore


def _with_gradient(
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    group_sizes: torch.Tensor,
    tiling: Any = None,
    group_offset: _Maybe = None,
    transpose_rhs: bool = False,
) -> torch.Tensor:
    if group_offset is not None:
        raise ArgumentError("gmm: with a group_offset it has no gradient; use .detach()")
    rhs = rhs.transpose(1, 2) if transpose_rhs else rhs
    return GMM.apply(lhs, rhs, group_sizes, tuple(tiling or _DEFAULT_TILING))  # type: ignore


def gmm_xla(
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    group_sizes: torch.Tensor,
    tiling: list[int] | None = None,
    group_offset: _Maybe = None,
    transpose_rhs: bool = False,
) -> torch.Tensor:
    """`torch.ops.xla.gmm` of tensors that have values."""
    tiles: Any = None if tiling is None else tuple(tiling)
    return gmm(lhs, rhs, group_sizes, tiles, group_offset, transpose_rhs)


def gmm_non_xla(
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    group_sizes: torch.Tensor,
    tiling: list[int] | None = None,
    group_offset: _Maybe = None,
    transpose_rhs: bool = False,
) -> torch.Tensor:
    """Its result for tensors without values."""
    _check("gmm", lhs, rhs, 3)
    warn_of_no_values("gmm", lhs)
    return lhs.new_empty(lhs.shape[0], rhs.shape[1 if transpose_rhs else 2])


define(
    "gmm(Tensor lhs, Tensor rhs, Tensor group_sizes, int[]? tiling=None,"
    " Tensor? group_offset=None, bool transpose_rhs=False) -> Tensor",
    gmm_xla,
    meta=gmm_non_xla,
    device=gmm_xla,
)
differentiate("gmm", _with_gradient)
