#!/usr/bin/env python
"""How fast each form of a convolution is on this CPU, in its three directions, beside eager torch.

    .venv/bin/python scripts/bench_convolutions.py [--match REGEX] [--rounds 9]

Runs shapes from real nets: the value, the gradient by the input and that by the weight, in each
form that `ops/conv_forms.py` and its neighbours have, by turns with eager torch, all with the
options that programs with convolutions are compiled with. Prints one JSON line per shape and
direction: milliseconds (the median of the rounds) of each form and of eager, and which form the
rules of `ops/conv_rules.py` choose. The last line counts where another one was quicker by a tenth.
A form that is quicker alone need not be so in a program, where others are fused with it: try it in
whole nets before a rule follows it.
"""

import argparse
import functools
import json
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
from torch_xdist.ops import conv, conv_rules
from torch_xdist.ops.conv_forms import Window, native

# What counts as quicker: single figures move by less.
MARGIN = 0.9
# Those of any program with a convolution.
OPTIONS = compile_options.options(
    jax.make_jaxpr(lambda x: jax.lax.conv(x, x, (1, 1), "VALID"))(jnp.ones((1, 1, 2, 2))),
    platforms.of("cpu"),
)
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

    @property
    def text(self) -> str:
        """As the rules write it: samples x channels in x positions, kernel and stride, out."""
        stride = f" / {self.stride}" if self.stride > 1 else ""
        return f"{self.n} x {self.c} x {self.size}^2, {self.kernel}^2{stride}, {self.o}"

    @property
    def window(self) -> Window:
        """How the kernel walks."""
        padding = (self.padding,) * 2
        return Window((self.stride,) * 2, padding, padding, (1, 1), groups=1)


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
    w = torch.randn(shape.o, shape.c, shape.kernel, shape.kernel)
    window = shape.window
    how = None, window.stride, window.padding, window.dilation
    grad = torch.randn_like(torch.conv2d(x, w, *how))
    xs, ws, grads = (jnp.asarray(tensor.numpy()) for tensor in (x, w, grad))

    def backward(*mask: bool) -> Run:
        arguments = grad, x, w, *how, False, (0, 0), 1, mask
        return lambda: torch.ops.aten.convolution_backward.default(*arguments)

    yield Direction(
        "value",
        "native",
        {"native": functools.partial(native, window=window)},
        (xs, ws),
        lambda: torch.conv2d(x, w, *how),
    )
    by_input = dict(conv.INPUT_GRADIENTS)
    if shape.stride == 1 or shape.kernel % shape.stride:
        del by_input["phases"]
    shapes = grad.shape, w.shape, window
    of_input = x, by_input, conv_rules.input_gradient(*shapes), ws
    of_weight = w, conv.WEIGHT_GRADIENTS, conv_rules.weight_gradient(*shapes), xs
    for name, (like, forms, chosen, other) in (("input", of_input), ("weight", of_weight)):
        runs = {
            form: functools.partial(_at, run, like.shape, window) for form, run in forms.items()
        }
        eager = backward(name == "input", name == "weight", False)
        yield Direction(name, chosen, runs, (grads, other), eager)


def _at(form: Any, shape: Sequence[int], window: Window, grad: Any, other: Any) -> jax.Array:
    found: jax.Array = form(grad, other, shape, window)
    return found


def compiled(form: Callable[..., jax.Array], operands: Sequence[jax.Array]) -> Run:
    """A form as a program with convolutions has it, which waits for its result."""
    step = jax_internals.compiled(jax.jit(form).lower(*operands), OPTIONS)
    return lambda: jax.block_until_ready(step(*operands))


def measure(direction: Direction, rounds: int) -> dict[str, float]:
    """Milliseconds of each form and of eager torch: medians of rounds by turns."""
    runs = {name: compiled(form, direction.operands) for name, form in direction.forms.items()}
    runs["eager"] = direction.eager
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, run in runs.items():
            began_s = time.perf_counter()
            run()
            if number:
                taken[name].append(time.perf_counter() - began_s)
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
