"""Reductions over dims behind which many numbers lie are XLA's own, and what torch's are."""

import jax
import jax.numpy as jnp
import pytest
import torch
import torch.nn.functional as F
from devices_agree import both

import torch_xla
from torch_xdist.core.programs import long_reductions

pytestmark = pytest.mark.on_cpu

LONG = {
    "a sum": lambda x: x.sum(0),
    "a sum of two dims": lambda x: x.unflatten(0, (3, 2)).sum((0, 1), keepdim=True),
    "a sum behind a dim": lambda x: x[None].mean(1),
    "a sum of halves": lambda x: x.bfloat16().sum(0),
    "the largest": lambda x: x.amax(0),
    "the smallest": lambda x: x.amin(0),
    "a softmax": lambda x: x.softmax(0),
    "a loss of channels": lambda x: F.cross_entropy(
        x[None], torch.zeros(1, x.shape[1], dtype=torch.int64, device=x.device)
    ),
}
OTHERS = {
    "of short rows": lambda x: x[:, :4095].sum(0),
    "along the rows": lambda x: x.sum(1),
    "of all": lambda x: x.sum(),
    "of integers": lambda x: x.int().sum(0),
    "of truth values": lambda x: (x > 0).any(0),
    "of products": lambda x: x.prod(0),
}


def numbers() -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(6, 4100)


def lowered(function, shape: tuple[int, ...] = (6, 4100)) -> jax.stages.Lowered:
    """A function of such an array as the programs have it."""
    found = jax.jit(function).lower(jnp.zeros(shape))
    long_reductions.by_xla(found)
    return found


def convolved(images: jax.Array) -> jax.Array:
    return jax.lax.conv(images, jnp.ones((5, 2, 3, 3)), (1, 1), "SAME")


def hlo(function) -> str:
    """The program that a function of the numbers records."""
    return str(torch_xla._XLAC._get_xla_tensors_hlo([function(numbers().to("xla"))]))


@pytest.mark.parametrize("function", LONG.values(), ids=LONG)
def test_they_equal_eagers_with_gradients(function):
    both(function, numbers())


@pytest.mark.parametrize("function", [jnp.sum, jnp.max, jnp.min])
def test_ynnpack_is_asked_for_those_of_short_rows_alone(function):
    long, short = (lowered(lambda x, n=n: function(x[:, :n], 0)) for n in (4100, 2050))
    assert "ynn_fusion" not in long.compile().as_text()
    assert "ynn_fusion" in short.compile().as_text()


def test_the_programs_of_torchs_operators_have_them():
    assert "negate" in hlo(LONG["a sum"])


@pytest.mark.parametrize("function", OTHERS.values(), ids=OTHERS)
def test_others_stay_what_they_are(function):
    assert "negate" not in hlo(function)


@pytest.mark.parametrize("extreme", ["amax", "amin"])
def test_a_nan_among_them_is_the_largest_and_the_smallest(extreme):
    x = numbers()
    x[2, 7] = float("nan")
    both(lambda x: getattr(x, extreme)(0), x)


def test_reductions_of_several_arrays_and_by_other_functions_stay():
    def joined(x: jax.Array) -> jax.Array:
        zero = jnp.zeros((), x.dtype)
        return jax.lax.reduce(x, zero, lambda a, b: a + b * b, [0])

    assert "negate" not in lowered(joined).as_text()
    assert "negate" not in lowered(lambda x: jnp.argmax(x, 0)).as_text()


def test_those_in_loops_are_found():
    def looped(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 3, lambda i, y: y + y.sum(0) * 0.1, x)

    assert "negate" in lowered(looped).as_text()


@pytest.mark.parametrize(
    "function",
    [
        lambda x: convolved(x).sum(1),
        lambda x: jax.nn.softmax(jax.nn.relu(convolved(x) * 2), 1),
        lambda x: jax.lax.platform_dependent(
            x, cpu=convolved, default=lambda y: convolved(y) + 1
        ).max(1),
        lambda x: jax.jit(lambda y: jnp.exp(y).sum(1))(convolved(x)),
    ],
    ids=["itself", "of pointwise functions", "on one platform", "in a function"],
)
def test_those_over_the_channels_of_a_convolution_stay(function):
    """XLA has them last, whatever their dims are."""
    assert "stablehlo.negate" not in lowered(function, (1, 2, 64, 64)).as_text()


def test_what_is_moved_after_a_convolution_is_none():
    moved = lowered(lambda x: convolved(x).swapaxes(0, 1).sum(0), (1, 2, 64, 64))
    assert "stablehlo.negate" in moved.as_text()


def test_a_convolution_is_not_looked_for_without_end():
    def far(x: jax.Array) -> jax.Array:
        x = convolved(x)
        for _ in range(2000):
            x = x + 1
        return x.sum(1)

    assert "stablehlo.negate" in lowered(far, (1, 2, 64, 64)).as_text()
