"""Operators one by one through the compiler of a topology, each forward and backward."""

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from torch_xdist import metrics
from torch_xdist.ahead import step
from torch_xdist.ahead.compiler import Compiler
from torch_xdist.ahead.topology import Topology
from torch_xdist.ahead.verdict import Verdict
from torch_xdist.core.devices import steps

# Of an operator, where it did not even come to a program.
NOT_RECORDED = "not recorded"


class Found(NamedTuple):
    """What became of one operator.

    Attributes:
        fallbacks: the operators that ran on the CPU meanwhile, such as "aten::linalg_eig".
    """

    name: str
    verdict: Verdict
    fallbacks: tuple[str, ...] = ()

    @property
    def word(self) -> str:
        """In one word."""
        fell = self.verdict.is_ok and self.fallbacks
        return "falls back" if fell else self.verdict.kind


def tried(
    name: str,
    make: Callable[[], Any],
    call: Callable[[Any], Any],
    topology: Topology,
    compiler: Compiler,
) -> Found:
    """Compile what `call(make())` records.

    Args:
        make: returns the operands; what it records runs before.
    """
    before = _fallbacks()
    try:
        operands = make()
        steps.sync()
        results = call(operands)
        verdict = step.pending(topology, compiler)
        del results, operands
    except Exception as error:
        first = f"{type(error).__name__}: {error}".splitlines()[0]
        verdict = Verdict(NOT_RECORDED, first)
    step.forget()
    return Found(name, verdict, tuple(sorted(_fallbacks() - before)))


def _fallbacks() -> Counter[str]:
    return Counter({n: metrics.counter_value(n) or 0 for n in metrics.missing_lowerings()})
