"""Writing results into tensors that exist: in-place operators, out=, copy_."""

import functools
from collections.abc import Sequence
from typing import Any

import torch

from torch_xdist.core.bind import own_plan
from torch_xdist.core.plan import Op, Plan
from torch_xdist.core.tensor import XlaTensor, wrap, wrap_roomy
from torch_xdist.core.trace import Cell, Kind, Trace, dense_kind, kind_of
from torch_xdist.core.views import make_as_strided, overlaps, slot_of, write
from torch_xdist.errors import DeviceError
from torch_xdist.ops.table import LOWERINGS

_META = torch._C.DispatchKeySet(torch._C.DispatchKey.Meta)
_CASTS: dict[tuple[Kind, torch.dtype], Plan] = {}


def mutated_tensors(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """The tensors an in-place operator writes, in the order of its schema."""
    tensors: list[Any] = []
    for position, name in op.mutated:
        value = args[position] if position < len(args) else kwargs.get(name)
        tensors.extend(value if isinstance(value, list | tuple) else [value])
    return tensors


def out_tensors(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """The out= tensors of a call, then what else it writes, in the order of the functional form."""
    outs: list[Any] = []
    for name in op.out_names:
        value = kwargs[name]
        outs.extend(value if isinstance(value, list | tuple) else [value])
    beside = [(i, name) for i, name in op.mutated if name not in op.out_names]
    return outs + [args[i] if i < len(args) else kwargs.get(name) for i, name in beside]


def check_targets(op: Op, targets: Sequence[Any]) -> None:
    """Refuse what cannot be written: CPU tensors and tensors whose elements overlap."""
    for target in targets:
        if target is None:
            continue
        if target.__class__ is not XlaTensor:
            raise DeviceError(
                f"{op.name}: cannot write a result of an xla device into a "
                f"{target.type()} on {target.device}; give it a tensor on the xla device"
            )
        if overlaps(target.cell.kind):
            raise RuntimeError(
                "unsupported operation: more than one element of the written-to tensor refers "
                "to a single memory location. Please clone() the tensor before performing the "
                "operation."
            )


def finish(op: Op, cells: Sequence[Cell | None], targets: Sequence[Any], *, is_out: bool) -> Any:
    """Move the written tensors to the new values and return what the operator returns."""
    fresh = len(cells) - len(targets)
    for cell, target in zip(cells[fresh:], targets):
        if target is None or cell is None:
            continue
        if is_out and _is_laid_out_anew(op, target.cell.kind, cell.kind):
            resize(target, cell.kind.shape, _memory_order(op, cell.kind))
        check_result(cell.kind, target.cell.kind)
        write(target.cell, slot_as(cell, target.cell.kind.dtype))
    results = [None if c is None else wrap(c) for c in cells[:fresh]]
    if not op.returns_mutated:
        return None
    if fresh:
        return tuple(results) if len(results) > 1 else results[0]
    # An operator may write to more than it returns: _amp_update_scale_ does.
    count = len(op.func._schema.returns)
    return targets[0] if count == 1 else tuple(targets[:count])


# torch's kernels of these lay out every out= tensor that has no elements.
_ANEW_WHERE_EMPTY = frozenset(
    f"aten.{name}"
    for name in (
        "cholesky_inverse.out",
        "linalg_eig.out",
        "linalg_eigvals.out",
        "linalg_householder_product.out",
        "linalg_lstsq.out",
        "ormqr.out",
        "triangular_solve.X",
    )
)

# Others have results in another order of dims, but leave a resized out= row-major.
_ROW_MAJOR = frozenset(["aten._fft_c2r.out", "aten._fft_r2c.out", "aten.cholesky.out"])


def _is_laid_out_anew(op: Op, target: Kind, result: Kind) -> bool:
    """Whether an out= tensor takes the shape and the strides of the result."""
    return target.shape != result.shape or (not target.numel and op.name in _ANEW_WHERE_EMPTY)


def _memory_order(op: Op, result: Kind) -> tuple[int, ...] | None:
    """The strides an out= tensor takes from a result; None for row-major ones."""
    is_dense = _extent(result) == result.offset + result.numel and not overlaps(result)
    return result.stride if is_dense and op.name not in _ROW_MAJOR else None


def check_result(result: Kind, target: Kind) -> None:
    """torch's own refusals of an in-place result."""
    if result.shape != target.shape:
        raise RuntimeError(
            f"output with shape {list(target.shape)} doesn't match the broadcast shape "
            f"{list(result.shape)}"
        )
    if not torch.can_cast(result.dtype, target.dtype):
        name = str(result.dtype).removeprefix("torch.")
        raise RuntimeError(
            f"result type {_TITLES.get(name, name)} can't be cast to the desired output type "
            f"{_TITLES.get(str(target.dtype).removeprefix('torch.'), target.dtype)}"
        )


_TITLES = {
    "float32": "Float", "float64": "Double", "float16": "Half", "bfloat16": "BFloat16",
    "int64": "Long", "int32": "Int", "int16": "Short", "int8": "Char", "uint8": "Byte",
    "bool": "Bool", "complex64": "ComplexFloat", "complex128": "ComplexDouble",
}  # fmt: skip


def slot_as(cell: Cell, dtype: torch.dtype) -> int:
    """The slot of a cell's value in another dtype."""
    slot = slot_of(cell)
    if cell.kind.dtype == dtype:
        return slot
    key = (cell.kind, dtype)
    plan = _CASTS.get(key)
    if plan is None:
        plan = _CASTS[key] = _cast_plan(cell.kind, dtype)
    return append(cell.trace, plan, slot)


def append(trace: Trace, plan: Plan, *slots: int) -> int:
    """Append a row of one result that no cell points at yet; returns its slot."""
    trace.rows.append((plan, *slots))
    result = trace.next_slot
    trace.next_slot = result + 1
    return result


def _cast_plan(kind: Kind, dtype: torch.dtype) -> Plan:
    cast = functools.partial(LOWERINGS["aten._to_copy.default"], dtype=dtype)
    return own_plan(f"cast.{dtype}", cast, [kind], [dense_kind(kind.shape, dtype)])


def resize(
    target: XlaTensor, shape: tuple[int, ...], stride: tuple[int, ...] | None = None
) -> None:
    """Give a tensor that is about to be overwritten another shape, as out= does.

    Without `stride` the last dim is the innermost.
    """
    old = target.cell
    kind = dense_kind(shape, old.kind.dtype)
    if stride is not None:
        kind = kind_of(shape, old.kind.dtype, stride)
    if 0 < kind.numel <= old.kind.numel:
        # Its memory is large enough, and may be looked at through other views.
        move_cell(target, make_as_strided(old, shape, kind.stride, old.kind.offset))
    else:
        move_cell(target, Cell(kind, old.trace))


def set_layout(target: XlaTensor, kind: Kind) -> None:
    """Change dtype, sizes and strides of the wrapper in place, by torch's meta kernels."""
    layout = kind.shape, kind.stride, kind.offset
    before = target.cell.kind
    if _extent(kind) > _extent(before) or kind.dtype != before.dtype:
        # torch checks layouts against the size of the wrapper: it becomes a large one.
        torch.Tensor.data.__set__(target, wrap_roomy(Cell(kind, target.cell.trace)))  # type: ignore[attr-defined]
    torch.ops.aten.as_strided_.default.redispatch(_META, target, *layout)


def _extent(kind: Kind) -> int:
    """How many elements of a storage a layout reaches into."""
    if not kind.numel:
        return 0
    return kind.offset + 1 + sum((n - 1) * s for n, s in zip(kind.shape, kind.stride))


def move_cell(target: XlaTensor, cell: Cell) -> None:
    """Make a tensor point at another cell, whatever its layout was."""
    if target.cell.kind is not cell.kind:
        set_layout(target, cell.kind)
    target.cell = cell
