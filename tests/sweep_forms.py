"""The forms of an operator that the sweep calls: with its gradient, in-place, and with out=.

Every form is a function of (op, inputs, like, clean): `inputs` are (input, args, kwargs) on any
device and in any precision, `like` the tensors CPU torch returned, whose shapes out= needs, and
`clean` what torch's database does to a result to remove signs and phases it leaves open. A form
returns what is to be compared: tensors, and plain values such as whether the returned object is
the given one.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

DEVICE = "xla"
Inputs = tuple[Any, tuple[Any, ...], dict[str, Any]]
Clean = Callable[[Any], Any]
Form = Callable[[Any, Inputs, Sequence[torch.Tensor], Clean], Any]


def tensors_of(value: Any) -> list[torch.Tensor]:
    return [t for t in pytree.tree_leaves(value) if isinstance(t, torch.Tensor)]


def copied(t: torch.Tensor, copy: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """A copied tensor: a view of a larger memory becomes the same view of a copy of all of it."""
    held = 0 if t.layout is not torch.strided else t.untyped_storage().nbytes() // t.element_size()
    if held <= t.numel() or t.is_conj() or t.is_neg():
        return copy(t.detach()).detach().requires_grad_(t.requires_grad)
    memory = torch.empty(0, dtype=t.dtype).set_(t.untyped_storage(), 0, (held,), (1,))
    view = copy(memory).as_strided(t.shape, t.stride(), t.storage_offset())
    return view.detach().requires_grad_(t.requires_grad)


# They make tensors of numbers: where, says device=, which not every sample has.
_FACTORIES = ("arange", "linspace", "logspace")


def on_device(op: Any, inputs: Inputs) -> Inputs:
    """The inputs on the device; leaves that want a gradient still do."""

    def move(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return copied(value, lambda t: t.to(DEVICE))
        is_device = isinstance(value, torch.device) or value == "cpu"
        return torch.device(DEVICE) if is_device else value

    if op.name == "tensor_split":
        # It takes sizes as tensors, which torch wants on the CPU whatever the device.
        return (move(inputs[0]), *inputs[1:])
    value, args, kwargs = pytree.tree_map(move, inputs)
    if op.name in _FACTORIES:
        kwargs.setdefault("device", torch.device(DEVICE))
    return value, args, kwargs


def on_cpu(inputs: Inputs) -> Inputs:
    """A copy of the inputs, which a form may write to."""
    return pytree.tree_map(
        lambda v: copied(v, torch.clone) if isinstance(v, torch.Tensor) else v, inputs
    )


_DOUBLE = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}


def can_be_exact(inputs: Inputs) -> bool:
    return any(t.dtype in _DOUBLE for t in tensors_of(inputs))


def in_double(inputs: Inputs) -> Inputs:
    """A copy of the inputs in double precision."""

    def widen(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return _DOUBLE.get(value, value) if isinstance(value, torch.dtype) else value
        return copied(value, lambda t: t.to(_DOUBLE.get(t.dtype, t.dtype), copy=True))

    return pytree.tree_map(widen, inputs)


def nearby(inputs: Inputs, generator: torch.Generator) -> Inputs:
    """A copy of the inputs whose numbers differ by up to 5 %, for other roundings on the way."""

    def vary(t: torch.Tensor) -> torch.Tensor:
        noise = torch.rand(t.shape, generator=generator, dtype=torch.float64)
        return (t * (0.95 + 0.1 * noise)).to(t.dtype)

    def varied(value: Any) -> Any:
        is_tensor = isinstance(value, torch.Tensor)
        is_real = is_tensor and (value.is_floating_point() or value.is_complex())
        return copied(value, vary if is_real else torch.clone) if is_tensor else value

    return pytree.tree_map(varied, inputs)


def gradients(result: Any, inputs: Any) -> list[Any] | None:
    """Gradients of the sum over every differentiable result, for every leaf that wants one."""
    outs = [t for t in tensors_of(result) if t.requires_grad]
    leaves = [t for t in tensors_of(inputs) if t.requires_grad]
    if not outs or not leaves:
        return None
    seeds = [torch.ones_like(t) for t in outs]
    return list(torch.autograd.grad(outs, leaves, seeds, allow_unused=True))


def call(op: Any, inputs: Inputs, like: Sequence[torch.Tensor], clean: Clean) -> Any:
    """The operator and its gradient."""
    result = clean(op.op(inputs[0], *inputs[1], **inputs[2]))
    return result, gradients(result, inputs)


def call_only(op: Any, inputs: Inputs, like: Sequence[torch.Tensor], clean: Clean) -> Any:
    """The operator without a gradient."""
    with torch.no_grad():
        return clean(op.op(inputs[0], *inputs[1], **inputs[2])), None


def in_place(op: Any, inputs: Inputs, like: Sequence[torch.Tensor], clean: Clean) -> Any:
    """The in-place variant on a clone, and its gradient where it has one."""
    with torch.set_grad_enabled(op.supports_inplace_autograd):
        target = inputs[0].clone()
        result = op.inplace_variant(target, *inputs[1], **inputs[2])
    return target, result is target, gradients(result, inputs)


def out_strided(op: Any, inputs: Inputs, like: Sequence[torch.Tensor], clean: Clean) -> Any:
    """With out= tensors that are transposed views: they keep strides, their memory is written."""
    memory = [torch.ones(t.shape[::-1], dtype=t.dtype, device=_home(inputs)) for t in like]
    outs = [_transposed(m) for m in memory]
    result = _with_out(op, inputs, outs, clean)
    written = [_same(_transposed(m), out) for m, out in zip(memory, outs)]
    return result, written, [tuple(out.stride()) for out in outs]


def out_resized(op: Any, inputs: Inputs, like: Sequence[torch.Tensor], clean: Clean) -> Any:
    """With out= tensors without elements: they are resized."""
    outs = [torch.empty(0, dtype=t.dtype, device=_home(inputs)) for t in like]
    return _with_out(op, inputs, outs, clean)


def _with_out(op: Any, inputs: Inputs, outs: list[torch.Tensor], clean: Clean) -> Any:
    """What was written, and whether the given tensors were returned."""
    out = outs[0] if len(outs) == 1 else tuple(outs)
    # torch compares device= with the device underneath, which is not called xla.
    options = {name: value for name, value in inputs[2].items() if name != "device"}
    with torch.no_grad():
        result = op.op(inputs[0], *inputs[1], **options, out=out)
        return clean(result), [r is o for r, o in zip(tensors_of(result), outs)]


def _transposed(t: torch.Tensor) -> torch.Tensor:
    return t.permute(tuple(reversed(range(t.dim()))))


def _same(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return ((one == other) | (one != one)).all()


def _home(inputs: Inputs) -> torch.device:
    """Where the results of a call on these inputs are."""
    tensors = tensors_of(inputs)
    if tensors:
        return tensors[0].device
    return torch.device(inputs[2].get("device") or "cpu")


def forms_of(op: Any, sample: Any) -> list[Form]:
    """The forms a sample can be called in, the plain call first."""
    forms: list[Form] = [call]
    if op.inplace_variant is not None and not sample.broadcasts_input:
        forms.append(in_place)
    if op.supports_out:
        # CPU torch (2.13) writes beside the memory of a strided out= of these.
        forms += [out_resized] if op.name in ("tril", "triu") else [out_strided, out_resized]
    return forms
