"""What XLA is told of a program: on CPUs of arrays that are written over, small programs,
convolutions, barriers; on GPUs of exact products; on several TPUs of collectives.

Written over: a step writes its parameters over the old ones, which its gradients read too. Where
nothing says that the last reader comes before the update, XLA copies the parameter; by regions it
makes an order of the two, as it does for TPUs: 13 nets took 0.89 to 1.01 of a step, 0.96 in the
middle, and as long to compile (docs/optimizations.md).

Small ones: compiling one takes longer than all of its runs. Without XLA's fusion emitters, which
load MLIR for every kernel, without LLVM's optimizations and in one piece it takes a half to a fifth
of the time. A program gets what leaves its bits as they are and lets it run as fast: those of few
equations on few elements, without loops. One thing differs where LLVM optimizes nothing: a product
and a sum round twice, as in eager torch.

Convolutions: XLA gives them to YNNPACK, which runs on one thread and writes every patch out before
it multiplies (64 x 32 x 26 x 26 under 3 x 3 to 64 channels: 24 ms, 10,000 pages of the system's at
each run; XLA's own convolution: 3.3 ms). So it keeps products and sums to itself, and convolutions
are XLA's own.

Programs with convolutions are compiled without fusion emitters too, where little in them is of
what the emitters compute quicker: 18 nets took 0.42 to 1.05 of the time to their first step, and
0.80 to 1.08 for later ones, 10 with some of it 0.59 to 0.94 and 0.73 to 1.03
(docs/optimizations.md).

LLVM compiles them at its second level. At XLA's third it writes loops over a last dim of up to 48
out whole, and computes their numbers one by one: 16,384 of 32 in a row take 3.9 us for a product
and a sum, at the second level 0.6, and images have such rows. 23 nets took 0.44 to 1.18 of the time
to their first step, 0.94 in the middle, and 0.86 to 1.08 for later ones, 0.99. Pools alone take up
to 1.25 times as long, so that programs without convolutions keep the third level.

Products of bfloat16: YNNPACK multiplies these as they are, but none whose left side is transposed.
XLA leaves a product to it before it makes one of a product and a transpose, and then has nothing
that computes it (the gradient of a contrastive loss in bfloat16). So it does not fold transposes
into products where a program has such ones; a GPT's step in bfloat16 takes 1.00 to 1.04 so, and
1.9 without YNNPACK.

Barriers (`ops/settled.py`): XLA drops them before it fuses, unless the pass that does is left out.

Constants: what a program computes of them alone XLA computes as it compiles, and reductions one
number after the other, 4 us each (2 cores of a Xeon, 2026-11-29): the first step of
`(x + position).sum()`, whose gradient by 197 x 192 positions is a sum of ones over 8 samples, took
1.4 s and takes 0.07, a softmax of 8 x 512 x 512 zeros 5.5 s. So a program that reduces many of them
does it as it runs. All others fold constants: MNIST's step would have 2.3 times the instructions.

GPUs: XLA times Triton's kernels beside cuBLAS's for each product, and those for exact products of
float32 take seconds each to compile, to lose: on an H100 the first three steps of a GPT of six
layers took 106 s and 18 s without them, a perceptron's 30 and 1.3 s; later steps were as fast
(docs/gpu.md). So a program whose products are all such ones leaves Triton out. Of halves Triton's
are the quickest at times, and stay.

Several TPUs: an all-reduce is asynchronous, and what computes meanwhile has its steps inside (an
"async collective fusion"), in the order in which gradients come. By itself XLA makes one of all
gradients, which begins when the last one is there, and waits for it. docs/tpu.md shows both.

Where a user's XLA_FLAGS or LIBTPU_INIT_ARGS speak of one of these, they decide about it.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jaxlib.version
from jax import lax
from jax.extend import core

from torch_xdist import settings
from torch_xdist.core.programs.jax_internals import PASSES, joined
from torch_xdist.platforms import Choices

Options = dict[str, bool | int | str]

# jaxlib 0.11 has one kind of fusions, and the option no more.
_NO_EMITTERS: Options = (
    {"xla_cpu_use_fusion_emitters": False} if jaxlib.version.__version_info__ < (0, 11) else {}
)
_BY_REGIONS: Options = {"xla_cpu_copy_insertion_use_region_analysis": True}
_LEVEL = "xla_backend_optimization_level"
_PIECES = "xla_cpu_parallel_codegen_split_count"
# What YNNPACK computes: all but the convolutions of XLA's own list.
_YNN = "xla_cpu_experimental_ynn_fusion_type"
_PRODUCTS_AND_SUMS = "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT,LIBRARY_FUSION_TYPE_REDUCE"
_CONVOLUTION = "conv_general_dilated"
# By primitive.
_OF: dict[str, Options] = {
    _CONVOLUTION: {_YNN: _PRODUCTS_AND_SUMS, _LEVEL: 2},
    "optimization_barrier": {PASSES: "cse_barrier_expander"},
    # It has such a barrier inside (`ops/keys.py`).
    "random_fold_in": {PASSES: "cse_barrier_expander"},
}


class _Bound(NamedTuple):
    """Equations of a program, and elements of its largest array."""

    equations: int
    elements: int


# Of longer ones the compilation gains little; of larger ones scatters run longer without fusion
# emitters.
_SMALL = _Bound(24, 4096)
# Loops over more elements that LLVM did not make wider are seen in a step's time.
_TINY = _Bound(256, 256)
# What takes longer without fusion emitters, on so many elements: a step that is mostly GELU 1.15
# times as long, with a sigmoid 1.13, with softplus 1.17; with tanh, ELU and dropout 0.8 to 1.0.
# Volumes, whose planes are brought together by transposes of six dims: 1.22. Several sums in one
# walk, the gradients of depthwise kernels: 1.1 to 1.4.
_SLOWER = frozenset(
    "cos erf erf_inv erfc exp exp2 log log1p logistic pow scatter scatter-add sin sort".split()
)
_MANY_ELEMENTS = 2**16
_MOST_DIMS = 5
# What is quicker makes up for it where all elements of a program are so many times those.
_MAKES_UP = 50
# Equations that call a function.
_CALLS = frozenset("closed_call custom_jvp_call custom_vjp_call jit pjit remat remat2".split())
# Elements of a constant whose reduction takes a tenth of a second to fold.
_MANY_CONSTANTS = 2**15
# Without fusion emitters XLA rounds to float16 inside functions too, tan and rsqrt for example.
_DTYPES = frozenset(
    """
    bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 bfloat16 float32 float64 key<fry>
    key<xfry>
    """.split()
)
# What moves, compares, or rounds each result once: no optimization changes its bits.
EXACT = frozenset(
    """
    abs add and argmax argmin bitcast_convert_type broadcast_in_dim ceil clamp clz concatenate
    convert_element_type copy custom_jvp_call div dynamic_slice dynamic_update_slice eq floor gather
    ge gt iota is_finite jit le lt max min mul ne neg not or pad pjit population_count random_bits
    random_fold_in random_seed random_split random_unwrap random_wrap reduce_and reduce_max
    reduce_min reduce_or rem reshape rev round scatter scatter-add select_n shift_left
    shift_right_arithmetic shift_right_logical sign slice sort split sqrt squeeze stop_gradient sub
    transpose xor
    """.split()
)
# What LLVM may contract or reorder, but XLA's two emitters compute alike. tan, cbrt and atan they
# do not.
ALIKE = frozenset(
    """
    acos acosh asin asinh atanh cos cosh cummax cummin cumprod cumsum digamma dot_general erf
    erf_inv erfc exp exp2 expm1 integer_pow lgamma log log1p logistic pow reduce_prod reduce_sum
    rsqrt sin sinh square tanh
    """.split()
)


# Gradients that come after one another travel together up to this size, as between ranks of a host.
_TOGETHER_BYTES = 8 << 20
_NO_TRITON: Options = {"xla_gpu_enable_triton_gemm": False}
# Of a program on several TPUs.
_OF_TPUS: Options = {
    "xla_enable_async_all_reduce": True,
    "xla_tpu_enable_async_collective_fusion": True,
    "xla_tpu_enable_async_collective_fusion_fuse_all_reduce": True,
    "xla_tpu_enable_async_collective_fusion_multiple_steps": True,
    "xla_tpu_overlap_compute_collective_tc": True,
    "xla_jf_crs_combiner_threshold_in_bytes": _TOGETHER_BYTES,
}


def options(program: core.ClosedJaxpr, choices: Choices) -> Options:
    """The options to compile a program with, by name; none for most."""
    if choices.has_own_options:
        found = _of_small(program) or {**_BY_REGIONS, **_of_operators(program)}
        return _not_given(joined(joined(found, _of_bfloat16(program)), _of_constants(program)))
    return options_of_products(program, choices)


def options_of_several(choices: Choices) -> Options:
    """Those of a program on several devices of a platform, whatever it computes."""
    return _not_given(_OF_TPUS) if choices.combines else {}


def options_on_mesh(program: core.ClosedJaxpr, choices: Choices) -> Options:
    """Those of a program on several devices of a platform, by what it computes too."""
    found = {**options_of_products(program, choices), **options_of_several(choices)}
    if choices.is_host:
        of_host = joined(_of_bfloat16(program), _of_constants(program))
        found |= _not_given(of_host)
    return found


def options_of_products(program: core.ClosedJaxpr, choices: Choices) -> Options:
    """Those for the matrix products of a program, on one device or several."""
    if not choices.tries_triton:
        return {}
    products = _products(program)
    return _not_given(_NO_TRITON) if products and all(map(_is_exact, products)) else {}


def _of_bfloat16(program: core.ClosedJaxpr) -> Options:
    """What products of bfloat16 need."""
    is_wanted = any(str(_types(x)[0].dtype) == "bfloat16" for x in _products(program))
    return {PASSES: "transpose-folding"} if is_wanted else {}


def _of_constants(program: core.ClosedJaxpr) -> Options:
    """What a program needs that reduces large constants."""
    reduces, _ = _reduces_constants(program.jaxpr, [False] * len(program.jaxpr.invars))
    return {PASSES: "constant_folding"} if reduces else {}


def _reduces_constants(
    jaxpr: core.Jaxpr, are_constant: Sequence[bool]
) -> tuple[bool, Sequence[bool]]:
    """Whether it does, and which of its results are constants, where these of its inputs are."""
    varying = {x for x, is_constant in zip(jaxpr.invars, are_constant) if not is_constant}
    for equation in jaxpr.eqns:
        given = [isinstance(x, core.Literal) or x not in varying for x in equation.invars]
        made: Sequence[bool] = [all(given)] * len(equation.outvars)
        inner = _called(equation)
        if inner is not None:
            reduces, made = _reduces_constants(inner, given)
            if reduces:
                return True, ()
        elif all(made) and _is_large_reduction(equation):
            return True, ()
        varying |= {x for x, is_constant in zip(equation.outvars, made) if not is_constant}
    return False, [isinstance(x, core.Literal) or x not in varying for x in jaxpr.outvars]


def _called(equation: core.JaxprEqn) -> core.Jaxpr | None:
    """The function that an equation calls once, with its own operands."""
    inner = [*core.jaxprs_in_params(equation.params)]
    is_call = len(inner) == 1 and len(inner[0].invars) == len(equation.invars)
    return inner[0] if is_call and equation.primitive.name in _CALLS else None


def _is_large_reduction(equation: core.JaxprEqn) -> bool:
    is_reduction = equation.primitive.name.startswith(("reduce", "arg"))
    return is_reduction and bool(_types(equation)[0].size >= _MANY_CONSTANTS)


def _products(program: core.ClosedJaxpr) -> list[core.JaxprEqn]:
    return [x for x in _equations(program.jaxpr) if x.primitive.name == "dot_general"]


def _not_given(options: Options) -> Options:
    return {name: value for name, value in options.items() if not settings.is_flag_given(name)}


def _of_operators(program: core.ClosedJaxpr) -> Options:
    equations = [*_equations(program.jaxpr)]
    names = {equation.primitive.name for equation in equations}
    found: Options = {}
    for primitive, of_it in _OF.items():
        if primitive in names:
            found |= of_it
    if _CONVOLUTION in names and not _need_emitters(equations):
        found |= _NO_EMITTERS
    return found


def _is_exact(product: core.JaxprEqn) -> bool:
    """Whether it is one of float32 that is not to be rounded to TF32."""
    asked = product.params["precision"]
    are_float32 = all(str(x.dtype) == "float32" for x in _types(product)[:2])
    return are_float32 and asked == (lax.Precision.HIGHEST, lax.Precision.HIGHEST)


def _need_emitters(equations: Sequence[core.JaxprEqn]) -> bool:
    """Whether a program takes longer, or is rounded otherwise, without fusion emitters."""
    slower = whole = 0
    for equation in equations:
        types = _types(equation)
        if not all(map(_is_plain, types)):
            return True
        elements = max((x.size for x in types), default=0)
        whole += elements
        if elements > _MANY_ELEMENTS and _is_slower_without(equation):
            slower += elements
    return slower * _MAKES_UP > whole


def _is_slower_without(equation: core.JaxprEqn) -> bool:
    name = equation.primitive.name
    if name == "transpose":
        return bool(_types(equation)[0].ndim > _MOST_DIMS)
    return name in _SLOWER or (name == "reduce" and len(equation.outvars) > 1)


def _of_small(program: core.ClosedJaxpr) -> Options:
    names: set[str] = set()
    elements = 0
    for number, equation in enumerate(_equations(program.jaxpr), 1):
        names.add(equation.primitive.name)
        types = _types(equation)
        elements = max([elements, *(x.size for x in types)])
        bound = _SMALL if elements > _TINY.elements else _TINY
        if number > bound.equations or elements > bound.elements or not all(map(_is_plain, types)):
            return {}
    if not names <= EXACT | ALIKE:
        return {}
    found = {**_NO_EMITTERS}
    if elements <= _TINY.elements:
        found[_PIECES] = 1
        found[_LEVEL] = 0 if names <= EXACT else 1
    return found


def _equations(jaxpr: core.Jaxpr) -> Iterator[core.JaxprEqn]:
    """The equations, those of functions inside too."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in core.jaxprs_in_params(equation.params):
            yield from _equations(inner)


def _types(equation: core.JaxprEqn) -> list[Any]:
    return [x.aval for x in (*equation.invars, *equation.outvars)]


def _is_plain(aval: Any) -> bool:
    return str(getattr(aval, "dtype", None)) in _DTYPES
