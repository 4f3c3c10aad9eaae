"""Writing results into tensors that exist: in-place operators, out=, copy_."""

import functools
from collections.abc import Sequence
from typing import Any

import torch

from torch_xdist.core.alias.out_dtypes import check_castable, check_same
from torch_xdist.core.alias.views import make_as_strided, write
from torch_xdist.core.devices.tensor import (
    OtherClassError,
    XlaTensor,
    of_other_class,
    wrap,
    wrap_roomy,
)
from torch_xdist.core.run.device_trace import HERE, trace_here
from torch_xdist.core.trace.operators import Op
from torch_xdist.core.trace.plans import PLANS, Plan, jax_plan
from torch_xdist.core.trace.tensor_types import (
    TensorType,
    dense_type,
    extent,
    overlaps,
    tensor_type,
)
from torch_xdist.core.trace.trace import Trace
from torch_xdist.core.trace.values import Value, root_of
from torch_xdist.errors import CutError, DeviceError
from torch_xdist.ops.table import LOWERINGS

_META = torch._C.DispatchKeySet(torch._C.DispatchKey.Meta)


def mutated_tensors(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """What a call writes, in the order of the operator's schema; None where it was not given."""
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


# They write one number to all elements of one place, so that it does not matter which share it.
_ALIKE_EVERYWHERE = frozenset(
    ["aten.fill_.Scalar", "aten.fill_.Tensor", "aten.threshold_.default", "aten.zero_.default"]
)


def check_targets(op: Op, targets: Sequence[Any]) -> None:
    """Refuse what cannot be written: CPU tensors and tensors whose elements overlap.

    Raises OtherClassError where one is of a class that answers for itself.
    """
    for target in targets:
        if target is None:
            continue
        if target.__class__ is not XlaTensor:
            if of_other_class(target):
                raise OtherClassError
            raise DeviceError(
                f"{op.name}: cannot write a result of an xla device into a "
                f"{target.type()} on {target.device}; give it a tensor on the xla device"
            )
        if overlaps(target.value.type) and op.name not in _ALIKE_EVERYWHERE:
            raise RuntimeError(
                "unsupported operation: more than one element of the written-to tensor refers "
                "to a single memory location. Please clone() the tensor before performing the "
                "operation."
            )


def alike(plan: Plan, trace: Trace, targets: Sequence[Any]) -> list[Value] | None:
    """The values of written tensors, if each can hold the plan's result just as it is.

    They are the storages' own, and no result has another shape or dtype.
    """
    if trace.is_symbolic:
        return None
    found = []
    for target, type_ in zip(targets, plan.types[-len(targets) :]):
        if target is None:
            return None
        value = target.value
        if value.parent is not None or value.type is not type_:
            return None
        found.append(value)
    return found


def finish(op: Op, values: Sequence[Value | None], targets: Sequence[Any], *, is_out: bool) -> Any:
    """Give the written tensors their new values, and return what the operator returns."""
    fresh = len(values) - len(targets)
    for value, target in zip(values[fresh:], targets):
        if target is None or value is None:
            continue
        if is_out:
            check_same(op.name, value.type.dtype, target.value.type.dtype)
            if op.name in _IN_ANY_SHAPE and value.type.numel == target.value.type.numel:
                value = wrap(value).reshape(target.value.type.shape).value  # type: ignore[attr-defined]
        if is_out and _is_laid_out_anew(op, target.value.type, value.type):
            resize(target, value.type.shape, _memory_order(op, value.type))
        if value.type is not target.value.type:
            check_result(value.type, target.value.type)
        write(target.value, as_dtype(value, target.value.type.dtype))
    return returned(op, values[:fresh], targets)


def returned(op: Op, values: Sequence[Value | None], targets: Sequence[Any]) -> Any:
    """What an operator returns that has written: its other results, or what it wrote."""
    results = [None if value is None else wrap(value) for value in values]
    if not op.returns_mutated:
        return None
    if results:
        return tuple(results) if len(results) > 1 else results[0]
    # An operator may write to more than it returns: _amp_update_scale_ does.
    count = len(op.func._schema.returns)
    return targets[0] if count == 1 else tuple(targets[:count])


# They write one number after another, in whatever shape the out= tensor has them.
_IN_ANY_SHAPE = frozenset(
    f"aten.{name}"
    for name in (
        *("arange.out", "arange.start_out", "linspace.out", "logspace.out"),
        *("range.out", "range.out_"),
    )
)
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


def _is_laid_out_anew(op: Op, target: TensorType, result: TensorType) -> bool:
    """Whether an out= tensor takes the shape and the strides of the result."""
    return target.shape != result.shape or (not target.numel and op.name in _ANEW_WHERE_EMPTY)


def _memory_order(op: Op, result: TensorType) -> tuple[int, ...] | None:
    """The strides an out= tensor takes from a result; None for row-major ones."""
    is_dense = extent(result) == result.offset + result.numel and not overlaps(result)
    return result.stride if is_dense and op.name not in _ROW_MAJOR else None


def check_result(result: TensorType, target: TensorType) -> None:
    """torch's own refusals of an in-place result."""
    if result.shape != target.shape:
        raise RuntimeError(
            f"output with shape {list(target.shape)} doesn't match the broadcast shape "
            f"{list(result.shape)}"
        )
    check_castable(result.dtype, target.dtype)


def as_dtype(value: Value, dtype: torch.dtype) -> Value:
    """A value in another dtype."""
    type_ = value.type
    if type_.dtype == dtype:
        return value

    def make() -> Any:
        cast = functools.partial(LOWERINGS["aten._to_copy.default"], dtype=dtype)
        return jax_plan(f"cast.{dtype}", cast, [type_], [dense_type(type_.shape, dtype)])

    trace = trace_here(value.trace.device)
    (result,) = trace.record(PLANS.find(("cast", type_, dtype), make), [value])
    assert result is not None
    return result


def resize(
    target: XlaTensor, shape: tuple[int, ...], stride: tuple[int, ...] | None = None
) -> None:
    """Give a tensor that is about to be overwritten another shape, as out= does.

    Without `stride` the last dim is the innermost.
    """
    old = target.value
    type_ = dense_type(shape, old.type.dtype)
    if stride is not None:
        type_ = tensor_type(shape, old.type.dtype, stride)
    if 0 < type_.numel <= old.type.numel:
        # Its memory is large enough, and may be looked at through other views.
        set_value(target, make_as_strided(old, shape, type_.stride, old.type.offset))
    else:
        set_value(target, Value(type_, old.trace))


def set_layout(target: XlaTensor, type_: TensorType) -> None:
    """Change dtype, sizes and strides of the wrapper in place, by torch's meta kernels."""
    layout = type_.shape, type_.stride, type_.offset
    before = target.value.type
    if extent(type_) > extent(before) or type_.dtype != before.dtype:
        # torch checks layouts against the size of the wrapper: it becomes a large one.
        roomy = wrap_roomy(Value(type_, target.value.trace))
        torch.Tensor.data.__set__(target, roomy)  # type: ignore[attr-defined]
    torch.ops.aten.as_strided_.default.redispatch(_META, target, *layout)


def set_value(target: XlaTensor, value: Value) -> None:
    """Make a tensor point at another value, whatever its layout was.

    Raises CutError where a function that is being recorded gives a tensor from outside a value that
    is not there after it.
    """
    root, here = root_of(target.value), HERE.symbolic
    if here is not None and root.trace is not here and root_of(value) is not root:
        raise CutError(
            f"a body of control flow gives a tensor {target.value.type!r} from outside other memory"
            " (.data =, set_, resize_, or an out= of another size); write into it, or return the"
            " value from the body"
        )
    if target.value.type is not value.type:
        set_layout(target, value.type)
    target.value = value
