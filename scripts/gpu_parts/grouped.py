"""Convolutions of groups on the GPU: one after another, as now, and as cuDNN's own of groups.

`ops/conv.py` splits them on every platform but TPUs, which was measured on CPUs alone.
"""

import statistics
import time
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp

from gpu_parts.place import Place

# Samples, channels, positions in a row, groups.
SHAPES = {"32 groups of 4": (64, 128, 56, 32), "32 groups of 16": (64, 512, 14, 32)}
_ROUNDS = 20


def grouped(place: Place) -> None:
    """A 3 x 3 convolution and both of its gradients in bfloat16 and float32, both ways."""
    for name, (n, c, size, groups) in SHAPES.items():
        shape = (2, 8, 6, 2) if place.rehearses else (n, c, size, groups)
        for dtype in ("bfloat16", "float32"):
            found, results = {}, []
            for way, splits in (("one after another", True), ("XLA's own", False)):
                figures, result = _measured(*shape, dtype, splits)
                found[way] = figures
                results.append(result)
            place.found(f"{name}, {dtype}", found)
            apart = max(float(jnp.abs(a - b).max() / jnp.abs(a).max()) for a, b in zip(*results))
            place.need(f"{name}, {dtype}: both ways agree", apart < 0.05, apart)


def _measured(
    n: int, c: int, size: int, groups: int, dtype: str, splits: bool
) -> tuple[dict[str, float], list[Any]]:
    """Seconds to compile and milliseconds of a run, and what it gives."""
    from torch_xdist import platforms
    from torch_xdist.ops import conv, forms

    x, grad = (jax.random.normal(jax.random.key(i), (n, c, size, size)) for i in range(2))
    w = jax.random.normal(jax.random.key(2), (c, c // groups, 3, 3))
    operands = [a.astype(dtype) for a in (grad, x, w)]
    rest = [1, 1], [1, 1], [1, 1], False, [0], groups

    def step(grad: Any, x: Any, w: Any) -> list[Any]:
        value = conv.convolution(x, w, None, *rest)
        both = conv.convolution_backward(grad, x, w, None, *rest, [True, True, False])
        return [value, *both[:2]]

    rules = ("is_by_shifts", "is_gradient_by_shifts", "is_weight_gradient_by_shifts")
    with (
        mock.patch.object(forms, "_chosen", [platforms.of(jax.default_backend())]),
        mock.patch.multiple(conv.conv_rules, **dict.fromkeys(rules, lambda *_: False)),
        mock.patch.object(conv, "_is_split", lambda window: splits and window.groups > 1),
    ):
        lowered = jax.jit(step).lower(*operands)
    began_s = time.perf_counter()
    run = lowered.compile()
    compiled_s = time.perf_counter() - began_s
    result, taken = jax.block_until_ready(run(*operands)), []
    for _ in range(_ROUNDS):
        began_s = time.perf_counter()
        jax.block_until_ready(run(*operands))
        taken.append(time.perf_counter() - began_s)
    return {
        "compiled_s": round(compiled_s, 2),
        "run_ms": round(1e3 * statistics.median(taken), 3),
    }, [one.astype("float32") for one in result]
