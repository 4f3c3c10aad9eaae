"""What XLA is told of a small program on a CPU: compiling one takes longer than all of its runs.

Without its fusion emitters, which load MLIR for every kernel, and without LLVM's optimizations XLA
compiles it in half the time or less. Both are for programs alone whose results have the same bits
with and without, and which run as fast: of few equations on few elements, without loops. Where a
user's XLA_FLAGS speak of one of the two, XLA_FLAGS decide about it.
"""

from collections.abc import Iterator
from typing import Any

from jax.extend import core

from torch_xdist import settings

Options = dict[str, bool | int]

_EMITTERS = "xla_cpu_use_fusion_emitters"
_LEVEL = "xla_backend_optimization_level"
# Of chains of 40 the compilation gains little, of 100 it takes longer without fusion emitters.
_MOST_EQUATIONS = 24
# Elements of the largest array. Beyond the first number scatters run longer without fusion
# emitters; beyond the second, loops that LLVM did not make wider are seen in a step's time.
_MOST_ELEMENTS, _MOST_ELEMENTS_UNOPTIMIZED = 4096, 64
# Without fusion emitters XLA rounds to float16 inside functions too, tan and rsqrt for example.
_DTYPES = frozenset(
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 bfloat16 float32 float64".split()
)
# What moves, compares, or rounds each result once: no optimization changes its bits.
EXACT = frozenset(
    """
    abs add and argmax argmin broadcast_in_dim ceil clamp clz concatenate convert_element_type copy
    custom_jvp_call div dynamic_slice dynamic_update_slice eq floor gather ge gt iota is_finite jit
    le lt max min mul ne neg not or pad pjit population_count reduce_and reduce_max reduce_min
    reduce_or reshape rev round select_n shift_left shift_right_arithmetic shift_right_logical sign
    slice split sqrt squeeze stop_gradient sub transpose xor
    """.split()
)
# What LLVM may contract or reorder, but XLA's two emitters compute alike. tan, cbrt and atan they
# do not.
ALIKE = frozenset(
    """
    acos acosh asin asinh atanh cos cosh cummax cummin cumprod cumsum digamma dot_general erf
    erf_inv erfc exp exp2 expm1 integer_pow lgamma log log1p logistic pow reduce_prod reduce_sum rem
    rsqrt scatter scatter-add sin sinh sort square tanh
    """.split()
)
_PRODUCTS, _SUMS = frozenset(["mul"]), frozenset(["add", "sub"])


def options(program: core.ClosedJaxpr, platform: str) -> Options:
    """The options to compile a program with, by name; none for most."""
    if platform != "cpu":
        return {}
    names: set[str] = set()
    elements = 0
    for number, equation in enumerate(_equations(program.jaxpr)):
        names.add(equation.primitive.name)
        types: list[Any] = [x.aval for x in (*equation.invars, *equation.outvars)]
        if number >= _MOST_EQUATIONS or not all(map(_is_plain, types)):
            return {}
        elements = max([elements, *(x.size for x in types)])
    if elements > _MOST_ELEMENTS or not names <= EXACT | ALIKE:
        return {}
    found: Options = {_EMITTERS: False}
    # A product and a sum LLVM makes one operation that rounds once; without optimizations it does
    # not, as eager torch does not.
    is_contracted = names & _PRODUCTS and names & _SUMS
    if elements <= _MOST_ELEMENTS_UNOPTIMIZED and names <= EXACT and not is_contracted:
        found[_LEVEL] = 0
    return {name: value for name, value in found.items() if not settings.is_flag_given(name)}


def _equations(jaxpr: core.Jaxpr) -> Iterator[core.JaxprEqn]:
    """The equations, those of functions inside too."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in core.jaxprs_in_params(equation.params):
            yield from _equations(inner)


def _is_plain(aval: Any) -> bool:
    return str(getattr(aval, "dtype", None)) in _DTYPES
