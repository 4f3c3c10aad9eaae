#!/usr/bin/env python
"""How fast each form of a convolution is on this CPU, in its three directions, beside eager torch.

    .venv/bin/python scripts/bench_convolutions.py [--match REGEX] [--rounds 9]

Runs shapes from real nets: the value, the gradient by the input and that by the weight, in each
form that `ops/conv_forms.py` and its neighbours have, by turns with eager torch, all with the
options that programs with convolutions are compiled with. A turn is a few runs, of which the first
does not count: another's threads still spin. Prints one JSON line per shape and direction:
milliseconds (the median of the rounds) of each form and of eager, and which form the rules of
`ops/conv_rules.py` choose. The last line counts where another one was quicker by a tenth.
A form that is quicker alone need not be so in a program, where others are fused with it: try it in
whole nets before a rule follows it.
"""

import argparse
import functools
import json
import math
import re
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import torch

import torch_xla  # noqa: F401
from torch_xdist import platforms
from torch_xdist.core.programs import compile_options, jax_internals
from torch_xdist.ops import conv, conv_grouped, conv_rules
from torch_xdist.ops.conv_forms import Window, native
from torch_xdist.ops.conv_shifts import (
    by_shifts,
    input_gradient_by_shifts,
    weight_gradient_by_shifts,
)

# What counts as quicker: single figures move by less.
MARGIN = 0.9
# Of a turn.
RUNS = 3
# Above so many the form by shifts is not tried.
_MOST_SHARES = 100
Run = Callable[[], Any]


class Shape(NamedTuple):
    """One convolution of planes: `n` samples of `c` channels at `size`^2, to `o` channels."""

    net: str
    n: int
    c: int
    size: int
    o: int
    kernel: int
    stride: int = 1
    padding: int = 0
    groups: int = 1

    @property
    def text(self) -> str:
        """As the rules write it: samples x channels in x positions, kernel and stride, out."""
        stride = f" / {self.stride}" if self.stride > 1 else ""
        groups = f", {self.groups} groups" if self.groups > 1 else ""
        return f"{self.n} x {self.c} x {self.size}^2, {self.kernel}^2{stride}, {self.o}{groups}"

    @property
    def window(self) -> Window:
        """How the kernel walks."""
        padding = (self.padding,) * 2
        return Window((self.stride,) * 2, padding, padding, (1, 1), self.groups)


SHAPES = [
    Shape("mnist", 64, 1, 28, 10, 5),
    Shape("mnist", 64, 10, 12, 20, 5),
    Shape("mnist of torch's examples", 64, 1, 28, 32, 3),
    Shape("mnist of torch's examples", 64, 32, 26, 64, 3),
    Shape("digits", 64, 1, 8, 16, 3, 1, 1),
    Shape("digits", 64, 16, 4, 32, 3, 1, 1),
    Shape("lenet", 64, 3, 32, 6, 5),
    Shape("lenet", 64, 6, 14, 16, 5),
    Shape("resnet18 of cifar", 32, 3, 32, 64, 7, 2, 3),
    Shape("resnet18 of cifar", 32, 64, 8, 64, 3, 1, 1),
    Shape("resnet18 of cifar", 32, 64, 8, 128, 3, 2, 1),
    Shape("resnet18 of cifar", 32, 128, 4, 128, 3, 1, 1),
    Shape("resnet18 of cifar", 32, 256, 2, 256, 3, 1, 1),
    Shape("resnet18 with a stem of 3", 32, 3, 32, 64, 3, 1, 1),
    Shape("resnet18 with a stem of 3", 32, 64, 32, 64, 3, 1, 1),
    Shape("resnet18 with a stem of 3", 32, 64, 32, 128, 3, 2, 1),
    Shape("resnet18", 4, 3, 224, 64, 7, 2, 3),
    Shape("resnet18", 4, 64, 56, 64, 3, 1, 1),
    Shape("resnet18", 4, 128, 28, 128, 3, 1, 1),
    Shape("resnet18", 4, 128, 28, 256, 3, 2, 1),
    Shape("resnet18", 4, 256, 14, 256, 3, 1, 1),
    Shape("resnet18", 4, 512, 7, 512, 3, 1, 1),
    Shape("resnet50", 2, 64, 56, 64, 3, 1, 1),
    Shape("vgg", 16, 32, 32, 32, 3, 1, 1),
    Shape("vgg", 16, 64, 16, 64, 3, 1, 1),
    Shape("vgg", 1, 64, 224, 64, 3, 1, 1),
    Shape("gan", 64, 3, 32, 32, 4, 2, 1),
    Shape("gan", 64, 32, 16, 64, 4, 2, 1),
    Shape("u-net", 2, 16, 64, 16, 3, 1, 1),
    Shape("vit's patches", 8, 3, 224, 192, 16, 16),
    Shape("mobilenet", 16, 96, 32, 96, 3, 1, 1, 96),
    Shape("mobilenet", 16, 144, 16, 144, 3, 2, 1, 144),
    Shape("efficientnet", 16, 144, 16, 144, 5, 2, 2, 144),
    Shape("convnext", 4, 96, 56, 96, 7, 1, 3, 96),
    Shape("resnext", 4, 128, 56, 128, 3, 1, 1, 32),
    Shape("resnext", 4, 256, 56, 256, 3, 2, 1, 32),
]


class Direction(NamedTuple):
    """One of the three: what the rules choose, its forms with their operands, and eager torch's."""

    name: str
    chosen: str
    forms: dict[str, Callable[..., jax.Array]]
    operands: tuple[jax.Array, ...]
    eager: Run


def directions(shape: Shape) -> Iterator[Direction]:
    """The value of a convolution, and its gradients by the input and by the weight."""
    x = torch.randn(shape.n, shape.c, shape.size, shape.size)
    w = torch.randn(shape.o, shape.c // shape.groups, shape.kernel, shape.kernel)
    window = shape.window
    how = None, window.stride, window.padding, window.dilation
    grad = torch.randn_like(torch.conv2d(x, w, *how, shape.groups))
    xs, ws, grads = (jnp.asarray(tensor.numpy()) for tensor in (x, w, grad))

    def backward(*mask: bool) -> Run:
        arguments = grad, x, w, *how, False, (0, 0), shape.groups, mask
        return lambda: torch.ops.aten.convolution_backward.default(*arguments)

    of_value, of_input, of_weight = (_forms if shape.groups == 1 else _forms_of_groups)(shape)
    value = {form: functools.partial(run, window=window) for form, run in of_value[1].items()}
    eager = functools.partial(torch.conv2d, x, w, *how, shape.groups)
    yield Direction("value", of_value[0], value, (xs, ws), eager)
    for name, like, (chosen, forms), other in (
        ("input", x, of_input, ws),
        ("weight", w, of_weight, xs),
    ):
        runs = {
            form: functools.partial(_at, run, like.shape, window) for form, run in forms.items()
        }
        eager = backward(name == "input", name == "weight", False)
        yield Direction(name, chosen, runs, (grads, other), eager)


def _forms(shape: Shape) -> Iterator[tuple[str, dict[str, Any]]]:
    """Of each direction: what the rules choose, and all forms."""
    out = (shape.size + 2 * shape.padding - shape.kernel) // shape.stride + 1
    grad = (shape.n, shape.o, out, out)
    w = shape.o, shape.c, shape.kernel, shape.kernel
    arguments = grad, w, shape.window
    value = {"native": native}
    if math.prod(w[1:]) <= _MOST_SHARES:
        value["shifts"] = by_shifts
    yield "shifts" if conv_rules.is_by_shifts(w, shape.window) else "native", value
    by_input = dict(conv.INPUT_GRADIENTS)
    if shape.stride == 1 or shape.kernel % shape.stride:
        del by_input["phases"]
    yield conv_rules.input_gradient(*arguments), by_input
    yield conv_rules.weight_gradient(*arguments), conv.WEIGHT_GRADIENTS


def _forms_of_groups(shape: Shape) -> Iterator[tuple[str, dict[str, Any]]]:
    """The same of a convolution of groups: by shifts, as one product, or group by group."""
    of_one = _forms(shape._replace(c=shape.c // shape.groups, o=shape.o // shape.groups, groups=1))
    w = shape.o, shape.c // shape.groups, shape.kernel, shape.kernel
    out = (shape.size + 2 * shape.padding - shape.kernel) // shape.stride + 1
    is_one_product = conv_rules.is_one_product((shape.n, shape.o, out, out), w, shape.window)
    products = conv_grouped.direct, conv_grouped.input_gradient, conv_grouped.weight_gradient
    by_shifts_of = (
        (conv_rules.is_by_shifts, by_shifts),
        (conv_rules.is_gradient_by_shifts, input_gradient_by_shifts),
        (conv_rules.is_weight_gradient_by_shifts, weight_gradient_by_shifts),
    )
    axes = ((1, 0, 1), (1, 0, 1), (1, 1, 0))
    rest = zip(by_shifts_of, products, of_one, axes, strict=True)
    for (is_chosen, shifts), product, (chosen, forms), split in rest:
        found = {"by group": functools.partial(_by_group, forms[chosen], split)}
        found["one product"] = product
        if shape.stride == 1 or shifts is not input_gradient_by_shifts:
            found["shifts"] = shifts
        others = "one product" if is_one_product else "by group"
        yield "shifts" if is_chosen(w, shape.window) else others, found


def _by_group(
    form: Any, axes: tuple[int, int, int], a: Any, b: Any, *like: Any, window: Window
) -> jax.Array:
    """A form for each group; the operands are split and the results joined along these axes."""
    first, second, joined = axes
    if like:
        like = (tuple(n // window.groups if i == joined else n for i, n in enumerate(like[0])),)
    pairs = zip(jnp.split(a, window.groups, first), jnp.split(b, window.groups, second))
    one = window.one_group()
    return jnp.concatenate([form(x, y, *like, window=one) for x, y in pairs], joined)


def _at(form: Any, shape: Sequence[int], window: Window, grad: Any, other: Any) -> jax.Array:
    found: jax.Array = form(grad, other, shape, window=window)
    return found


def compiled(form: Callable[..., jax.Array], operands: Sequence[jax.Array]) -> Run:
    """A form as a program with convolutions has it, which waits for its result."""

    def beside_another(*operands: jax.Array) -> tuple[jax.Array, jax.Array]:
        image = jnp.ones((1, 1, 2, 2))
        return form(*operands), jax.lax.conv(image, image, (1, 1), "VALID")

    program = jax.make_jaxpr(beside_another)(*operands)
    options = compile_options.options(program, platforms.of("cpu"))
    step = jax_internals.compiled(jax.jit(form).lower(*operands), options)
    return lambda: jax.block_until_ready(step(*operands))


def measure(direction: Direction, rounds: int) -> dict[str, float]:
    """Milliseconds of each form and of eager torch: medians of rounds by turns."""
    runs = {name: compiled(form, direction.operands) for name, form in direction.forms.items()}
    runs["eager"] = direction.eager
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, run in runs.items():
            run()
            began_s = time.perf_counter()
            for _ in range(RUNS):
                run()
            if number:
                taken[name].append((time.perf_counter() - began_s) / RUNS)
    return {name: round(1e3 * statistics.median(times), 3) for name, times in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--match", default=".", help="shapes by their net or their text")
    parser.add_argument("--rounds", type=int, default=9, help="turns of each form (9)")
    options = parser.parse_args()
    count, worse = 0, 0
    for shape in SHAPES:
        if not re.search(options.match, f"{shape.net}: {shape.text}"):
            continue
        for direction in directions(shape):
            found = measure(direction, options.rounds)
            line: dict[str, Any] = {"net": shape.net, "shape": shape.text}
            line |= {"direction": direction.name, "chosen": direction.chosen, "ms": found}
            print(json.dumps(line), flush=True)
            least = min(found[name] for name in direction.forms)
            count, worse = count + 1, worse + (least < MARGIN * found[direction.chosen])
    print(json.dumps({"bench": "convolutions", "directions": count, "another is quicker": worse}))


if __name__ == "__main__":
    main()
