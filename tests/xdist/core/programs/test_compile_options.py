"""Small programs on a CPU compile with fewer optimizations, and give the same bits."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from torch_xdist import platforms
from torch_xdist.core.programs import compile_options, jax_internals
from torch_xdist.ops.settled import settled

# Other devices' programs have none of these.
pytestmark = pytest.mark.on_cpu

NO_EMITTERS = compile_options._NO_EMITTERS
BY_REGIONS = {"xla_cpu_copy_insertion_use_region_analysis": True}
TINY = NO_EMITTERS | {
    "xla_cpu_parallel_codegen_split_count": 1,
    "xla_backend_optimization_level": 1,
}
NOT_OPTIMIZED = TINY | {"xla_backend_optimization_level": 0}


@pytest.fixture(autouse=True)
def no_flags(monkeypatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)


def options(function, *shape, dtype="float32", platform="cpu"):
    x = jax.ShapeDtypeStruct(shape or (8,), dtype)
    return compile_options.options(jax.jit(function).trace(x).jaxpr, platforms.of(platform))


@pytest.mark.parametrize(
    ("function", "shape", "expected"),
    [
        (lambda x: x + 1, (256,), NOT_OPTIMIZED),
        (lambda x: x + 1, (257,), NO_EMITTERS),
        (lambda x: x + 1, (4096,), NO_EMITTERS),
        (lambda x: x + 1, (4097,), BY_REGIONS),
        (lambda x: x[:, None] + x, (65,), BY_REGIONS),
        (lambda x: x * x + 1, (8,), NOT_OPTIMIZED),
        (lambda x: x + jax.random.uniform(jax.random.key(3), x.shape), (8,), NOT_OPTIMIZED),
        (jnp.sin, (8,), TINY),
        (jnp.tan, (8,), BY_REGIONS),
        (lambda x: x.astype(jnp.float16), (8,), BY_REGIONS),
        (lambda x: jax.lax.fori_loop(0, 9, lambda i, y: y + 1, x), (8,), BY_REGIONS),
    ],
    ids="exact more most large large-inside both random sine tangent half loop".split(),
)
def test_programs_are_small_by_what_they_compute_and_on_how_much(function, shape, expected):
    assert options(function, *shape) == expected


def test_a_program_of_many_equations_is_not_small():
    def chain(x, count):
        for _ in range(count):
            x = -x
        return x

    assert options(lambda x: chain(x, 256)) == NOT_OPTIMIZED
    assert options(lambda x: chain(x, 257)) == BY_REGIONS
    assert options(lambda x: chain(x, 24), 300) == NO_EMITTERS
    assert options(lambda x: chain(x, 25), 300) == BY_REGIONS


def test_other_platforms_compile_as_they_do():
    assert options(lambda x: x + 1, platform="tpu") == {}


def test_programs_on_several_tpus_have_options_and_others_have_none(monkeypatch):
    monkeypatch.delenv("LIBTPU_INIT_ARGS", raising=False)
    found = compile_options.options_of_several(platforms.of("tpu"))
    assert found["xla_enable_async_all_reduce"] is True
    assert found["xla_jf_crs_combiner_threshold_in_bytes"] == 8 << 20
    for platform in ("cpu", "cuda"):
        assert compile_options.options_of_several(platforms.of(platform)) == {}


NO_TRITON = {"xla_gpu_enable_triton_gemm": False}


def squared(x, precision):
    with jax.default_matmul_precision(precision):
        return x @ x


@pytest.mark.parametrize(
    ("function", "dtype", "expected"),
    [
        (lambda x: squared(x, "highest"), "float32", NO_TRITON),
        (lambda x: jax.jit(squared, static_argnums=1)(x, "highest"), "float32", NO_TRITON),
        (lambda x: squared(x, "tensorfloat32"), "float32", {}),
        (lambda x: squared(x, "default"), "float32", {}),
        (lambda x: squared(x, "highest"), "bfloat16", {}),
        (lambda x: squared(x, "highest") + squared(x.astype("float16"), "highest"), "float32", {}),
        (lambda x: x + 1, "float32", {}),
    ],
    ids="exact exact-inside tf32 default halves both none".split(),
)
def test_exact_products_of_float32_leave_triton_out_on_a_gpu(function, dtype, expected):
    x = jax.ShapeDtypeStruct((8, 8), dtype)
    program = jax.jit(function).trace(x).jaxpr
    gpu = platforms.of("cuda")
    assert compile_options.options(program, gpu) == expected
    assert compile_options.options_of_products(program, gpu) == expected
    assert compile_options.options_on_mesh(program, gpu) == expected
    for platform in ("cpu", "tpu"):
        assert compile_options.options_of_products(program, platforms.of(platform)) == {}


def test_products_with_triton_can_be_asked_for(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_enable_triton_gemm=true")
    assert options(lambda x: squared(x, "highest"), 8, 8, platform="cuda") == {}


@pytest.mark.parametrize("variable", ["XLA_FLAGS", "LIBTPU_INIT_ARGS"])
def test_what_the_users_variables_speak_of_is_left_to_them(variable, monkeypatch):
    monkeypatch.setenv(variable, "--xla_tpu_overlap_compute_collective_tc=false")
    found = compile_options.options_of_several(platforms.of("tpu"))
    assert "xla_tpu_overlap_compute_collective_tc" not in found and len(found) == 5


def test_what_xla_flags_speak_of_they_decide(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=true")
    assert options(lambda x: x + 1) == {
        name: value for name, value in NOT_OPTIMIZED.items() if name not in NO_EMITTERS
    }


def test_an_option_that_this_xla_lacks_is_left_out(monkeypatch):
    lowered = jax.jit(lambda x: x + 1).lower(jnp.ones(2))
    asked = []
    compile_ = type(lowered).compile

    def counted(self, compiler_options):
        asked.append(compiler_options)
        return compile_(self, compiler_options)

    monkeypatch.setattr(type(lowered), "compile", counted)
    known = {"xla_backend_optimization_level": 1}
    for _ in range(2):
        run = jax_internals.compiled(lowered, {"xla_cpu_no_such_option": False, **known})
        assert run(jnp.ones(2)).tolist() == [2, 2]
    # It is asked for once; what XLA knows is kept.
    assert asked == [{"xla_cpu_no_such_option": False, **known}, known, known]


def test_another_failure_of_the_compiler_is_told(monkeypatch):
    def fail(self, compiler_options):
        raise jax.errors.JaxRuntimeError("out of memory")

    monkeypatch.setattr(jax.stages.Lowered, "compile", fail)
    with pytest.raises(jax.errors.JaxRuntimeError, match="out of memory"):
        jax_internals.compiled(jax.jit(jnp.sin).lower(1.0), NO_EMITTERS)


def with_reverse(function, x):
    return function(x, x[::-1])


ONE = """
    abs acos acosh asin asinh atanh ceil cos cosh digamma erf erf_inv erfc exp exp2 expm1 floor
    lgamma log log1p logistic neg round rsqrt sign sin sinh sqrt square tanh is_finite
""".split()
ALONG_A_DIM = "argmax argmin cumsum cumprod max min prod sort sum".split()
TWO = "add div max min mul pow rem sub eq ge gt le lt ne".split()
FUNCTIONS = {
    **{name: getattr(jax.lax, name) for name in ONE},
    **{f"{name} of a dim": partial(getattr(jnp, name), axis=1) for name in ALONG_A_DIM},
    **{f"{name} of two": partial(with_reverse, getattr(jax.lax, name)) for name in TWO},
    "dot_general": lambda x: x @ x.T,
    "integer_pow": lambda x: x**3,
    "scatter-add": lambda x: x.at[jnp.array([2, 0, 2])].add(x[:3]),
    "clamp": lambda x: jnp.clip(x, -0.5, 0.5),
    "select_n": lambda x: jnp.where(x > 0, x, 1),
    "softmax": jax.nn.softmax,
    "to integers": lambda x: x.astype(jnp.int32),
    "to halves": lambda x: x.astype(jnp.bfloat16).astype(x.dtype) * 3,
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
@pytest.mark.parametrize("shape", [(7, 5), (30, 50)], ids=str)
def test_small_programs_give_the_bits_of_others(function, shape, dtype):
    x = jnp.asarray(np.random.default_rng(0).standard_normal(shape) * 0.9, dtype)
    traced = jax.jit(function).trace(x)
    found = compile_options.options(traced.jaxpr, platforms.of("cpu"))
    assert found or not NO_EMITTERS
    lowered = traced.lower()
    expected, got = lowered.compile()(x), lowered.compile(compiler_options=found)(x)
    assert np.asarray(got).tobytes() == np.asarray(expected).tobytes()


def update(weight, x, grad):
    """A linear layer's gradients, of which the first becomes part of its weight."""
    return weight - 0.1 * (grad.T @ x), grad @ weight


def test_a_weight_that_its_gradient_reads_is_written_over_without_a_copy():
    x = jax.ShapeDtypeStruct((256, 256), "float32")
    traced = jax.jit(update, donate_argnums=0).trace(x, x, x)
    told = compile_options.options(traced.jaxpr, platforms.of("cpu"))
    assert told == BY_REGIONS
    compiled = jax_internals.compiled(traced.lower(), told)
    assert " copy(" not in compiled.as_text()
    weight, x, grad = np.random.default_rng(0).standard_normal((3, 256, 256)).astype(np.float32)
    expected = update(weight, x, grad)
    for got, wanted in zip(compiled(jnp.asarray(weight), x, grad), expected):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


YNN = "xla_cpu_experimental_ynn_fusion_type"
OF_CONVOLUTIONS = {YNN, "xla_backend_optimization_level", *BY_REGIONS}


def convolution(x):
    return jax.lax.conv_general_dilated(x, jnp.ones((2, 3, 3, 3), x.dtype), (1, 1), "SAME")


def test_convolutions_are_kept_from_ynnpack_on_a_cpu_alone():
    shape = (4, 3, 8, 8)
    assert set(options(convolution, *shape)) == {*OF_CONVOLUTIONS, *NO_EMITTERS}
    assert options(jax.jit(convolution), *shape) == options(convolution, *shape)
    assert options(convolution, *shape, platform="tpu") == {}


def test_xla_flags_decide_about_ynnpack_where_they_speak_of_it(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", f"--{YNN}=+individual_convolution")
    found = options(convolution, 4, 3, 8, 8)
    assert found == {"xla_backend_optimization_level": 2, **NO_EMITTERS, **BY_REGIONS}


def sums_after(x):
    y = convolution(x)
    zeros = [jnp.zeros((), y.dtype)] * 2
    return jax.lax.reduce([y, y * y], zeros, lambda a, b: [p + q for p, q in zip(a, b)], (0, 2))


def gelu_after(x):
    return jax.nn.gelu(convolution(x), approximate=False)


def volume(x):
    return convolution(x).reshape((2,) * 5 + (-1,)).T


def gelu_among(x, others):
    for _ in range(others):
        x = -x
    return gelu_after(x)


@pytest.mark.parametrize(
    ("function", "shape", "dtype", "is_without"),
    [
        (convolution, (64, 3, 64, 64), "float32", True),
        (convolution, (64, 3, 64, 64), "bfloat16", True),
        (convolution, (4, 3, 8, 8), "float16", False),
        (lambda x: jnp.tanh(convolution(x)), (64, 3, 64, 64), "float32", True),
        (gelu_after, (64, 3, 64, 64), "float32", False),
        (gelu_after, (4, 3, 8, 8), "float32", True),
        (lambda x: convolution(x).reshape((2,) * 5 + (-1,)), (4, 3, 8, 8), "float32", True),
        (volume, (64, 3, 64, 64), "float32", False),
        (volume, (4, 3, 8, 8), "float32", True),
        (lambda x: jnp.sort(convolution(x), 1), (64, 3, 64, 64), "float32", False),
        (sums_after, (64, 3, 64, 64), "float32", False),
        (sums_after, (4, 3, 8, 8), "float32", True),
        (lambda x: gelu_among(x, 40), (64, 3, 64, 64), "float32", True),
        (lambda x: gelu_among(x, 20), (64, 3, 64, 64), "float32", False),
    ],
    ids=(
        "plain bfloat16 float16 tanh gelu gelu-of-few windows volume small-volume sort sums"
        " sums-of-few gelu-among-many gelu-among-fewer"
    ).split(),
)
def test_convolutions_have_no_fusion_emitters_where_little_needs_them(
    function, shape, dtype, is_without
):
    without = {*NO_EMITTERS} if is_without else set()
    assert set(options(function, *shape, dtype=dtype)) == OF_CONVOLUTIONS | without


def test_a_convolution_is_compiled_as_xlas_own_and_a_sum_beside_it_stays_ynnpacks():
    x = jax.ShapeDtypeStruct((16, 3, 32, 32), "float32")
    traced = jax.jit(lambda x: (convolution(x), x.sum((0, 2, 3)))).trace(x)
    told = compile_options.options(traced.jaxpr, platforms.of("cpu"))
    text = jax_internals.compiled(traced.lower(), told).as_text()
    fused, entry = text.split("ENTRY")
    assert "convolution(" not in fused
    assert "convolution(" in entry
    assert "ynn_fusion" in entry


PASSES = "xla_disable_hlo_passes"


def shifted_twice(x):
    y = settled(jnp.maximum(x[::2], x[1::2]))
    return y + 1, y * 2


def test_what_is_settled_is_computed_once_on_a_cpu():
    x = jax.ShapeDtypeStruct((8192,), "float32")
    traced = jax.jit(shifted_twice).trace(x)
    told = compile_options.options(traced.jaxpr, platforms.of("cpu"))
    assert told == {PASSES: "cse_barrier_expander", **BY_REGIONS}
    text = jax_internals.compiled(traced.lower(), told).as_text()
    computed = [part for part in text.split("\n\n") if "maximum(" in part]
    assert len(computed) == 1
    assert np.array_equal(jax.jit(shifted_twice)(np.arange(8.0))[1], [2.0, 6.0, 10.0, 14.0])


def test_settling_is_nothing_on_another_platform():
    exported = jax.export.export(jax.jit(shifted_twice), platforms=["tpu"])
    text = exported(jax.ShapeDtypeStruct((8,), "float32")).mlir_module()
    assert "optimization_barrier" not in text


def test_passes_that_lowerings_and_options_leave_out_are_one_list(monkeypatch):
    lowered = jax.jit(lambda x: x + 1).lower(jnp.ones(3))
    monkeypatch.setattr(jax_internals, "options_in", lambda lowered: {PASSES: "dce"})
    seen = {}
    monkeypatch.setattr(
        type(lowered), "compile", lambda self, compiler_options: seen.update(compiler_options)
    )
    jax_internals.compiled(lowered, {PASSES: "cse_barrier_expander"})
    assert seen == {PASSES: "cse_barrier_expander,dce"}


def test_a_value_that_this_xla_does_not_know_is_left_out():
    lowered = jax.jit(lambda x: x + 1).lower(jnp.ones(3))
    run = jax_internals.compiled(lowered, {YNN: "LIBRARY_FUSION_TYPE_OF_ANOTHER_RELEASE"})
    assert np.array_equal(run(jnp.ones(3)), np.full(3, 2.0))


def test_transposes_are_not_folded_into_products_of_bfloat16():
    folding = {PASSES: "transpose-folding"}
    assert options(lambda x: x @ x.T, 8, 8, dtype="bfloat16").items() >= folding.items()
    for dtype in ("float32", "float16"):
        assert PASSES not in options(lambda x: x @ x.T, 8, 8, dtype=dtype)
    kept_apart = options(lambda x: settled(x) @ x.T, 80, 80, dtype="bfloat16")
    assert kept_apart[PASSES] == "cse_barrier_expander,transpose-folding"
    x = jax.ShapeDtypeStruct((8, 8), "bfloat16")
    program = jax.jit(lambda x: x @ x.T).trace(x).jaxpr
    assert compile_options.options_on_mesh(program, platforms.of("cpu")) == folding
    assert PASSES not in compile_options.options_on_mesh(program, platforms.of("tpu"))


FOLDS_NOTHING = {jax_internals.PASSES: "constant_folding"}


def ones(*shape):
    return jax.lax.broadcast(1.0, shape)


@pytest.mark.parametrize(
    ("function", "is_large"),
    [
        (lambda x: x + ones(64, 512).sum(0), True),
        (lambda x: x + ones(63, 512).sum(0), False),
        (lambda x: (x + ones(64, 512)).sum(0), False),
        (lambda x: x + jnp.exp(ones(64, 512)).max(0), True),
        (lambda x: x + jax.lax.iota("int32", 2**15).argmax(), True),
        (lambda x: x + jax.jit(lambda y: y.sum(0))(ones(64, 512)), True),
        (lambda x: x + jax.jit(lambda y: y * 2)(ones(64, 512)).sum(0), True),
        (lambda x: jax.jit(lambda y, z: y + z)(x, ones(64, 512)).sum(0), False),
        (lambda x: x + jax.jit(lambda y, z: (y, z))(x, ones(64, 512))[1].sum(0), True),
        (lambda x: x + jax.checkpoint(lambda y: jax.nn.relu(y).sum(0))(ones(64, 512)), True),
    ],
    ids="sum small varying after index call called joined passed nested".split(),
)
def test_reductions_of_large_constants_are_left_to_the_run(function, is_large):
    expected = BY_REGIONS | (FOLDS_NOTHING if is_large else {})
    assert options(function, 512) == expected


def test_ranks_leave_reductions_of_large_constants_to_the_run_too():
    program = jax.jit(lambda x: x + ones(64, 512).sum(0)).trace(jnp.zeros(512)).jaxpr
    assert compile_options.options_on_mesh(program, platforms.of("cpu")) == FOLDS_NOTHING
    assert compile_options.options_on_mesh(program, platforms.of("tpu")).keys() == (
        compile_options._OF_TPUS.keys()
    )


def test_a_constant_is_reduced_by_the_program():
    # Added as torch's sums are: XLA knows no shorter way for what is no plain addition.
    def add(a, b):
        return a - -b

    def step(x):
        return x + jax.lax.reduce(ones(64, 512), 0.0, add, (0,))

    lowered = jax.jit(step).lower(jnp.zeros(512))
    found = compile_options.options(jax.jit(step).trace(jnp.zeros(512)).jaxpr, platforms.of("cpu"))
    text = jax_internals.compiled(lowered, found).as_text()
    assert " reduce(" in text
    assert " reduce(" not in jax_internals.compiled(lowered, BY_REGIONS).as_text()
