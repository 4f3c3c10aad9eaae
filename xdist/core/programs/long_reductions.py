"""Sums and extremes over dims behind which many numbers lie, as XLA computes them on a CPU itself.

It gives them to YNNPACK, which takes long for rows of more than 16,384 numbers: sums of 64 rows of
131,072 took 33 ms instead of 0.9, of 8 samples of 128 x 256 0.65 instead of 0.10 (2 cores of a Xeon
with AVX-512, 2026-11-29). Such are the gradients of what all samples share, learned positions for
example, and a softmax over the channels of images. So the lowered program has them in other words,
for which YNNPACK is not asked: a - -b is a + b to the last bit.

For programs of one device: XLA has no collective in those words.
"""

import math
from typing import Any, NamedTuple

import jax
from jax.interpreters.mlir import ir
from jaxlib.mlir.dialects import stablehlo

# Shorter rows took 1.0 to 1.9 times as long in YNNPACK down to here, where a softmax over channels
# of 64 x 64 images takes 0.74 of the time; over 32 x 32 it would take 1.3.
_LONG = 2**12
# Among so many arrays a convolution's is looked for.
_NEAR = 64


def _minus(x: Any) -> Any:
    return stablehlo.NegOp(x).result


def _sum(a: Any, b: Any) -> Any:
    return stablehlo.SubtractOp(a, _minus(b)).result


def _largest(a: Any, b: Any) -> Any:
    return _minus(stablehlo.MinOp(_minus(a), _minus(b)).result)


def _smallest(a: Any, b: Any) -> Any:
    return _minus(stablehlo.MaxOp(_minus(a), _minus(b)).result)


_OTHER_WORDS = {
    "stablehlo.add": _sum,
    "stablehlo.maximum": _largest,
    "stablehlo.minimum": _smallest,
}


_POINTWISE = frozenset(
    f"stablehlo.{name}"
    for name in "abs add clamp convert divide exponential log logistic maximum minimum multiply"
    " negate optimization_barrier power rsqrt select sqrt subtract tanh".split()
)


def by_xla(lowered: jax.stages.Lowered) -> None:
    """Change a lowered program, so that XLA computes these reductions itself."""
    module: Any = lowered.compiler_ir("stablehlo")
    with module.context, ir.Location.unknown():
        found = _Found([], {}, {})
        _look_inside(module.operation, found)
        for reduction in found.reductions:
            if not _is_of_convolution(reduction.operands[0], found):
                _say_otherwise(reduction.regions[0].blocks[0])


class _Found(NamedTuple):
    """What there is in a module.

    Attributes:
        reductions: those over dims behind which many numbers lie.
        functions, calls: by the functions' names.
    """

    reductions: list[Any]
    functions: dict[str, Any]
    calls: dict[str, list[Any]]


def _look_inside(operation: Any, found: _Found) -> None:
    for region in operation.regions:
        for block in region.blocks:
            for inner in block.operations:
                name = inner.operation.name
                if name == "func.func":
                    found.functions[inner.attributes["sym_name"].value] = inner
                elif name == "func.call":
                    found.calls.setdefault(inner.attributes["callee"].value, []).append(inner)
                if name == "stablehlo.reduce":
                    if _is_long(inner):
                        found.reductions.append(inner)
                else:
                    _look_inside(inner.operation, found)


def _is_of_convolution(array: Any, found: _Found) -> bool:
    """Whether an array is a convolution's, but for pointwise operators.

    XLA has those with the channels last, however they are written, and what is made of them: there
    it is in one row what is reduced, and YNNPACK is quicker.
    """
    seen, waiting = {array}, [array]
    while waiting and len(seen) < _NEAR:
        for one in _made_of(waiting.pop(), found):
            if one is None:
                return True
            if one not in seen and _shape(one) == _shape(array):
                seen.add(one)
                waiting.append(one)
    return False


def _made_of(value: Any, found: _Found) -> list[Any]:
    """The arrays that it is made of number by number; None for a convolution's."""
    owner = value.owner
    if isinstance(owner, ir.Block):
        function: Any = owner.owner
        if function.operation.name != "func.func":
            return []
        calls = found.calls.get(function.attributes["sym_name"].value, [])
        return [call.operands[value.arg_number] for call in calls]
    name = owner.name
    if name == "stablehlo.convolution":
        return [None]
    if name == "func.call":
        function = found.functions[owner.attributes["callee"].value]
        return _returned(function.regions, value.result_number)
    if name == "stablehlo.case":
        return _returned(owner.regions, value.result_number)
    return [*owner.operands] if name in _POINTWISE else []


def _returned(regions: Any, number: int) -> list[Any]:
    """The results of that number of functions or branches that have a body."""
    blocks = [block for region in regions for block in region.blocks]
    return [[*block.operations][-1].operands[number] for block in blocks]


def _shape(value: Any) -> Any:
    return getattr(value.type, "shape", None)


def _is_long(reduction: Any) -> bool:
    """Whether it is of one array of floats, and so many numbers lie behind its dims."""
    if len(reduction.results) != 1:
        return False
    reduced = reduction.operands[0].type
    dims = [*reduction.attributes["dimensions"]]
    are_floats = isinstance(reduced.element_type, ir.FloatType)
    return are_floats and bool(dims) and math.prod(reduced.shape[max(dims) + 1 :]) >= _LONG


def _say_otherwise(body: Any) -> None:
    first, *rest = body.operations
    other = _OTHER_WORDS.get(first.operation.name)
    if other is None or len(rest) != 1 or {*first.operands} != {*body.arguments}:
        return
    with ir.InsertionPoint(first):
        found = other(*body.arguments)
    first.results[0].replace_all_uses_with(found)
    first.operation.erase()
