"""The core in less than 200 lines of code: a device in pure Python, torch in front, JAX behind.

This file is complete and shares no code with the package. Run it: it trains a small network on a
device of its own, prints what happened, and fails if the losses are not those of eager torch. The
package does the same with every operator, true views, donation, several ranks and much less time
per operator; each part below says where it lives there.
"""

import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch

# ---------------------------------------------------------------- 1. values and rows (core/trace/)


class Slot(NamedTuple):
    """Stands in a row where an operand goes: result or leaf number `index` of the trace."""

    index: int


class Number(NamedTuple):
    """Stands in a row where the next runtime scalar goes.

    A learning rate that changes must not make a new program at every step, so floats are inputs.
    """

    is_float: bool = True


class Value:
    """What a device tensor holds: a JAX buffer, or the slot of a row that did not run yet."""

    def __init__(self, meta: torch.Tensor, slot: int | None, buffer: jax.Array | None) -> None:
        self.meta, self.slot, self.buffer = meta, slot, buffer


class Trace:
    """The rows that wait, in the order they were recorded; they name each other by number."""

    def __init__(self) -> None:
        self.rows: list[tuple[Any, ...]] = []
        self.leaves: list[tuple[int, jax.Array]] = []
        self.numbers: list[float] = []
        self.listed: list[Value] = []
        self.leaf_values: list[Value] = []
        self.slots = 0

    def next_slot(self) -> int:
        self.slots += 1
        return self.slots - 1

    def slot_of(self, value: Value) -> int:
        """The slot of a value; a buffer from an earlier program enters as a leaf."""
        if value.slot is None:
            assert value.buffer is not None
            value.slot = self.next_slot()
            self.leaves.append((value.slot, value.buffer))
            self.leaf_values.append(value)
        return value.slot


TRACE = Trace()

# ------------------------------------------------ 2. the tensor and its dispatcher (core/record)


class DeviceTensor(torch.Tensor):
    """A torch.Tensor without storage: torch's autograd, modules and optimizers see a tensor.

    It lies on torch's own `lazy` device, for which torch has a device guard, and says `xla`.
    """

    value: Value

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("xla", 0)

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return record(func, args, kwargs or {})


def wrap(value: Value) -> DeviceTensor:
    tensor = torch.Tensor._make_wrapper_subclass(
        DeviceTensor, value.meta.shape, dtype=value.meta.dtype, device="lazy:0"
    )
    tensor.value = value
    return tensor


def to_device(tensor: torch.Tensor) -> DeviceTensor:
    """A copy of a CPU tensor on the device (core/devices/transfer.py)."""
    buffer = jnp.asarray(tensor.detach().numpy())
    wrapped = wrap(Value(tensor.detach().to("meta"), None, buffer))
    return wrapped.requires_grad_(tensor.requires_grad)


def to_host(tensor: DeviceTensor) -> torch.Tensor:
    """A CPU copy; reading a value that waits cuts the trace."""
    if tensor.value.buffer is None:
        cut("read")
    return torch.from_numpy(np.array(tensor.value.buffer))


def record(func: Any, args: Any, kwargs: dict[str, Any]) -> DeviceTensor:
    """Append one row, and return a tensor of what it will make (core/record/dispatch.py)."""
    target = None
    if func._schema.is_mutable:
        # In-place operators need no rows: the schema says what is written, and the functional
        # form of the same name computes it. The target then points at the new value.
        target = args[0]
        packet = getattr(torch.ops.aten, func._schema.name.removeprefix("aten::").rstrip("_"))
        func = getattr(packet, func._overloadname)
    # torch's meta kernels give type and shape, and raise torch's errors at the user's line.
    meta = func(*mapped(args, lambda t: t.value.meta), **kwargs_on_meta(kwargs))
    row = (str(func), frozen(args), tuple((k, frozen(v)) for k, v in kept(kwargs)))
    TRACE.rows.append((*row, TRACE.next_slot()))
    value = Value(meta, TRACE.slots - 1, None)
    TRACE.listed.append(value)
    if target is None:
        return wrap(value)
    target.value = value
    return target


def mapped(data: Any, change: Callable[[DeviceTensor], Any]) -> Any:
    """The arguments with their tensors changed."""
    if isinstance(data, list | tuple):
        return type(data)(mapped(item, change) for item in data)
    return change(data) if isinstance(data, DeviceTensor) else data


def kept(kwargs: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The keywords a lowering gets: devices and layouts say nothing to JAX."""
    for name, value in sorted(kwargs.items()):
        if name not in ("device", "layout", "pin_memory", "memory_format", "dtype"):
            yield name, value


def kwargs_on_meta(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {name: "meta" if name == "device" else value for name, value in kwargs.items()}


def frozen(data: Any) -> Any:
    """An argument as part of a row, which must be hashable: slots, numbers, static values."""
    if isinstance(data, list | tuple):
        return tuple(frozen(item) for item in data)
    if isinstance(data, DeviceTensor):
        return Slot(TRACE.slot_of(data.value))
    if isinstance(data, float):
        TRACE.numbers.append(data)
        return Number()
    return data


# ----------------------------------------------------- 3. lowerings, one line each (xdist/ops/)

LOWERINGS: dict[str, Callable[..., jax.Array]] = {
    "aten.t.default": jnp.transpose,
    "aten.mm.default": jnp.matmul,
    "aten.addmm.default": lambda self, mat1, mat2: self + mat1 @ mat2,
    "aten.add.Tensor": lambda self, other, alpha=1: self + other * alpha,
    "aten.sub.Tensor": lambda self, other, alpha=1: self - other * alpha,
    "aten.mul.Tensor": lambda self, other: self * other,
    "aten.mul.Scalar": lambda self, other: self * other,
    "aten.div.Scalar": lambda self, other: self / other,
    "aten.neg.default": jnp.negative,
    "aten.tanh.default": jnp.tanh,
    "aten.tanh_backward.default": lambda grad_output, output: grad_output * (1 - output**2),
    "aten.pow.Tensor_Scalar": lambda self, exponent: self**exponent,
    "aten.mean.default": jnp.mean,
    "aten.sum.dim_IntList": lambda self, dim, keepdim=False: self.sum(dim, keepdims=keepdim),
    "aten.expand.default": lambda self, size: jnp.broadcast_to(self, size),
    "aten.view.default": jnp.reshape,
    "aten.detach.default": lambda self: self,
    "aten.ones_like.default": jnp.ones_like,
}

# ---------------------------------------- 4. programs and cuts (core/programs/, core/run/)

PROGRAMS: dict[Any, Callable[..., list[jax.Array]]] = {}
CUTS: list[str] = []


def cut(reason: str) -> None:
    """Run every row that waits as one program; each living Value then holds a buffer."""
    global TRACE
    trace, TRACE = TRACE, Trace()
    CUTS.append(f"{reason}: {len(trace.rows)} rows")
    alive = living(trace)
    rows, outs = tuple(trace.rows), tuple(v.slot for v in alive)
    slots = tuple(slot for slot, _ in trace.leaves)
    # Two traces with equal rows are one program: the second step compiles nothing.
    key = (rows, slots, outs, tuple((b.shape, b.dtype) for _, b in trace.leaves))
    if key not in PROGRAMS:
        PROGRAMS[key] = jax.jit(lambda leaves, numbers: walk(rows, slots, outs, leaves, numbers))
    results = PROGRAMS[key]([b for _, b in trace.leaves], jnp.asarray(trace.numbers, jnp.float32))
    for value, buffer in zip(alive, results):
        value.buffer, value.slot = buffer, None
    for leaf in trace.leaf_values:
        leaf.slot = None


def living(trace: Trace) -> list[Value]:
    """The values a tensor still refers to: more than the list's own (core/programs/program.py).

    A weak reference per value would say the same, and cost more than the rest of its row.
    """
    (own,) = [sys.getrefcount(value) for value in [Value(torch.empty(0), None, None)]]
    return [value for value in trace.listed if sys.getrefcount(value) > own]


def walk(
    rows: tuple[Any, ...], slots: tuple[int, ...], outs: Any, leaves: Any, numbers: Any
) -> list[jax.Array]:
    """Compute the rows on JAX's tracers (core/programs/interpreter.py); XLA fuses them."""
    env = dict(zip(slots, leaves))
    scalars = iter(numbers)

    def filled(mark: Any) -> Any:
        if isinstance(mark, Slot):
            return env[mark.index]
        if isinstance(mark, Number):
            return next(scalars)
        return tuple(filled(item) for item in mark) if isinstance(mark, tuple) else mark

    for name, args, kwargs, slot in rows:
        env[slot] = LOWERINGS[name](*map(filled, args), **{k: filled(v) for k, v in kwargs})
    return [env[slot] for slot in outs]


# ------------------------------------------------------------------------------ 5. a training loop


def train(place: Callable[[torch.Tensor], Any], end_step: Callable[[], Any]) -> list[float]:
    """Fit a small network to sin(x). The loop is torch's own; only the tensors differ."""
    torch.manual_seed(0)
    x = torch.linspace(-2, 2, 32).reshape(32, 1)
    y = x.sin()
    shapes = [(16, 1), (16,), (1, 16), (1,)]
    weights = [place((0.5 * torch.randn(s)).requires_grad_()) for s in shapes]
    x, y = place(x), place(y)
    losses = []
    for step in range(20):
        hidden = torch.tanh(torch.addmm(weights[1], x, weights[0].t()))
        loss = ((torch.addmm(weights[3], hidden, weights[2].t()) - y) ** 2).mean()
        gradients = torch.autograd.grad(loss, weights)
        rate = 0.2 / (1 + step)  # another number at each step: an input, not a new program
        with torch.no_grad():
            for weight, gradient in zip(weights, gradients):
                weight.sub_(gradient * rate)
        losses.append(loss.detach())
        end_step()
    return [float(to_host(v)) if isinstance(v, DeviceTensor) else float(v) for v in losses]


def main() -> None:
    eager = train(lambda t: t.detach().requires_grad_(t.requires_grad), lambda: None)
    ours = train(to_device, lambda: cut("sync"))
    print(f"losses   {ours[0]:.4f} ... {ours[-1]:.4f} (eager torch: {eager[-1]:.4f})")
    print(f"cuts     {len(CUTS)}, one per step; the first and the last: {CUTS[0]}, {CUTS[-1]}")
    print(f"programs {len(PROGRAMS)}")
    if not np.allclose(ours, eager, rtol=1e-4) or len(PROGRAMS) > 2 or len(CUTS) != 20:
        raise SystemExit("tour: the device does not do what eager torch does")


if __name__ == "__main__":
    main()
