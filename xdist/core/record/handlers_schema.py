"""Operators whose schema does not say what they do, or whose functional form differs from it."""

import functools
import warnings
from collections.abc import Sequence
from typing import Any

import torch

from torch_xdist.core.alias import writes
from torch_xdist.core.devices.tensor import XlaTensor, wrap
from torch_xdist.core.devices.transfer import host_value
from torch_xdist.core.record import mask_counts
from torch_xdist.core.record.dispatch import dispatch, record, write_handler
from torch_xdist.core.record.handlers_copy import is_elsewhere
from torch_xdist.core.record.jax_ops import record_jax
from torch_xdist.core.run.device_trace import trace_here
from torch_xdist.core.trace.operators import Op, op_of
from torch_xdist.core.trace.plans import PLANS, Plan
from torch_xdist.ops.regions import kept_boxes

_BATCH_NORM = torch.ops.aten._native_batch_norm_legit
_LEGIT = op_of(_BATCH_NORM.default)
_ALL_OURS = [XlaTensor] * 5


def native_batch_norm(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The schema hides that the running statistics are written; the `legit` overload says it."""
    x, weight, bias, mean, var, training, momentum, eps = args
    if mean is None or var is None:
        return _BATCH_NORM.no_stats(x, weight, bias, training, momentum, eps)
    results = _known_batch_norm(args[:5], training, momentum, eps)
    # Not by torch, which would bring it here again.
    return results or dispatch(_BATCH_NORM.default, (), args, kwargs)


def _known_batch_norm(
    tensors: Sequence[Any], training: bool, momentum: float, eps: float
) -> tuple[Any, ...] | None:
    """What `write_handler` does for the `legit` overload, where it has seen such operands before.

    None where there is more to look at. A convolutional net calls this as often as anything.
    """
    if [x.__class__ for x in tensors] != _ALL_OURS or momentum.__class__ is not float:
        return None
    values = [x.value for x in tensors]
    key = (
        _LEGIT, *[v.type.at_zero or v.type for v in values], (bool, training),
        (float, momentum.hex()), (float, eps.hex()),
    )  # fmt: skip
    plan = PLANS.plans.get(key)
    trace = trace_here(values[0].trace.device)
    if plan.__class__ is not Plan or [v.trace for v in values].count(trace) != len(values):
        return None
    targets = writes.alike(plan, trace, tensors[3:])  # type: ignore[arg-type]
    if targets is None:
        return None
    return tuple([wrap(v) for v in trace.record_into(plan, values, (), targets)])  # type: ignore[arg-type]


def polygamma_(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The functional form takes its arguments in another order."""
    target, n = (*args, *kwargs.values())
    writes.check_targets(op, [target])
    result = torch.ops.aten.polygamma.default(n, target)
    return writes.finish(op, [result.value], [target], is_out=False)


def bernoulli_(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Torch leaves out a `p` of one half, for which the functional form has no default."""
    if len(args) == 1 and "p" not in kwargs:
        args = (*args, 0.5)
    elif not 0 <= (p := kwargs["p"] if len(args) == 1 else args[1]) <= 1:
        # A number that is an input of programs has no plan of its own, which would refuse it.
        torch.empty(0).bernoulli_(p)
    return write_handler(op, args, kwargs)


def drawn_between(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Numbers that are inputs of programs have no plan of their own, which would refuse them."""
    given = {"from": 0, "to": 1} | dict(zip(("from", "to"), args[1:])) | kwargs
    if given["to"] is not None and not given["from"] < given["to"]:
        rest = {name: value for name, value in kwargs.items() if name != "generator"}
        op.func(torch.empty(0, dtype=args[0].dtype), *args[1:], **rest)
    return write_handler(op, args, kwargs)


def drawn_below(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """As `drawn_between`."""
    high = args[1] if len(args) == 2 else kwargs["to"]
    if high <= 0:
        torch.empty(0, dtype=args[0].dtype).random_(high)
    return write_handler(op, args, kwargs)


def index_put(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """A mask may select another number of elements than there are values."""
    mask_counts.check(args, kwargs)
    return (write_handler if op.mutated else record)(op, args, kwargs)


def linalg_check_errors(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Raise torch's error for a matrix that cannot be factorized; reads `info`, as on cuda."""
    info = args[0]
    if not info.value.trace.is_symbolic:
        op.func(host_value(info), *args[1:], **kwargs)


def sizes_of_complex(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """`torch.abs` of complex numbers takes an out= of any floats, and one of their own dtype."""
    source, out = args[0], kwargs["out"]
    if source.dtype.is_complex and (out.dtype.is_floating_point or out.dtype is source.dtype):
        return torch.mul(source.abs(), 1, out=out)
    return write_handler(op, args, kwargs)


def checked_factors(name: str, op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """A factorization that is asked to raise: torch does so from within the kernel, by `info`."""
    assert op.general is not None
    results = op.general(op, args, kwargs)
    if kwargs.get("check_errors"):
        torch.ops.aten._linalg_check_errors(results[-1], name, is_matrix=args[0].dim() == 2)
    return results


def foreach_with_scalars(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Here the scalars are one CPU tensor, which torch reads as well."""
    *lists, scalars = (*args, *kwargs.values())
    packet = getattr(torch.ops.aten, op.func._schema.name.removeprefix("aten::"))
    return packet.ScalarList(*lists, scalars.tolist())


def nll_loss(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """torch_xla takes classes as floats, and scripts that it ran pass them.

    Those in bytes, which CPU torch takes, are none of its meta kernels'.
    """
    place = 2 if "backward" in op.func._schema.name else 1
    target = args[place]
    if target.dtype.is_floating_point:
        warnings.warn(
            f"nll_loss: the target is {target.dtype}, which torch does not take on other devices;"
            " it is read as int64 here. Pass target.long()",
            stacklevel=2,
        )
    if target.dtype.is_floating_point or target.dtype is torch.uint8:
        args = (*args[:place], target.long(), *args[place + 1 :])
    assert op.general is not None
    return op.general(op, args, kwargs)


def sdp_choice(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> int:
    return 0


def nms(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """torchvision's: how many boxes stay is read, as on cuda; which ones is a row."""
    boxes, scores, iou_threshold = (*args, *kwargs.values())
    if not boxes.size(0) or boxes.value.trace.is_symbolic:
        return record(op, args, kwargs)
    threshold = float(iou_threshold)
    lowering = functools.partial(kept_boxes, iou_threshold=threshold)
    kept, count = record_jax(op.name, lowering, [boxes, scores], threshold)
    return torch.ops.aten.narrow_copy.default(kept, 0, 0, int(host_value(count)))


def pack_padded(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Lengths stay on the CPU, as on cuda: which places are packed is asked of CPU torch."""
    input, lengths, batch_first = (*args, *kwargs.values())
    places = torch.arange(input.size(0) * input.size(1)).view(input.shape[:2])
    packed, batch_sizes = op.func(places, lengths, batch_first)
    return input.flatten(0, 1).index_select(0, packed.to(input.device)), batch_sizes


def between(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """`linspace` and `logspace` between tensors; what they make lies on torch's default device."""
    ends = [end for end in args[:2] if isinstance(end, XlaTensor)]
    if not any(is_elsewhere(end, kwargs.get("device")) for end in ends):
        return record(op, args, kwargs)
    return op.func(*[host_value(a) if isinstance(a, XlaTensor) else a for a in args], **kwargs)


def is_coalesced(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    return False


def assert_tensor_metadata(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """What torch.export leaves in a graph beside a change of dtype; only metadata is looked at."""
    if "device" in kwargs:
        # The device the example was on, which says nothing of this one.
        kwargs = {**kwargs, "device": None}
    op.func(args[0].value.type.meta, *args[1:], **kwargs)


_ENDS = ("Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor")
HANDLERS = {
    **{f"aten.{name}.{ends}": between for name in ("linspace", "logspace") for ends in _ENDS},
    "aten._foreach_addcdiv.Tensor": foreach_with_scalars,
    "aten._foreach_addcdiv_.Tensor": foreach_with_scalars,
    "aten._foreach_addcmul.Tensor": foreach_with_scalars,
    "aten._foreach_addcmul_.Tensor": foreach_with_scalars,
    "aten._assert_tensor_metadata.default": assert_tensor_metadata,
    "aten._fused_sdp_choice.default": sdp_choice,
    "aten._linalg_check_errors.default": linalg_check_errors,
    "aten._pack_padded_sequence.default": pack_padded,
    **{
        f"aten.{name}.default": functools.partial(checked_factors, told)
        for name, told in (
            ("_linalg_solve_ex", "torch.linalg.solve_ex"),
            ("linalg_cholesky_ex", "linalg.cholesky_ex"),
            ("linalg_inv_ex", "linalg.inv_ex"),
            ("linalg_lu_factor_ex", "torch.linalg.lu_factor_ex"),
        )
    },
    "aten.abs.out": sizes_of_complex,
    "aten.bernoulli_.float": bernoulli_,
    "aten.index_put.default": index_put,
    "aten.index_put.out": index_put,
    "aten.index_put_.default": index_put,
    "aten.is_coalesced.default": is_coalesced,
    "aten.native_batch_norm.default": native_batch_norm,
    "aten.nll_loss2d_backward.default": nll_loss,
    "aten.nll_loss2d_forward.default": nll_loss,
    "aten.nll_loss_backward.default": nll_loss,
    "aten.nll_loss_forward.default": nll_loss,
    "aten.polygamma_.default": polygamma_,
    "aten.random_.from": drawn_between,
    "aten.random_.to": drawn_below,
    "aten.uniform_.default": drawn_between,
    "torchvision.nms.default": nms,
}
