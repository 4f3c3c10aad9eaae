"""Products summed over rows, of which a CPU turns one operand around by a copy of its own."""

import jax
import jax.numpy as jnp
import pytest
import torch
import torch.nn.functional as F
from devices_agree import both

from torch_xdist.ops.turned import over_rows


@pytest.mark.parametrize(
    ("x", "out"),
    [((4, 256, 24), 96), ((1024, 96), 24), ((2, 3, 171, 33), 31), ((8, 64, 24), 24)],
    ids=["result turned too", "gradient turned", "of no round numbers", "enough rows"],
)
def test_the_gradients_of_a_linear_layer_equal_eager(x: tuple[int, ...], out: int) -> None:
    torch.manual_seed(0)
    shapes = (x, (out, x[-1]), (out,))
    both(F.linear, *(torch.randn(shape, dtype=torch.float64) for shape in shapes))


@pytest.mark.on_cpu
@pytest.mark.parametrize(
    ("grad", "x", "turned"),
    [
        ((1024, 96), (1024, 24), 2),
        ((1024, 24), (1024, 96), 1),
        ((1024, 64), (1024, 64), 1),
        ((256, 96), (256, 24), 0),
        ((1024, 1024), (1024, 1024), 0),
    ],
    ids=["and its result", "the gradient", "equals", "few rows", "large"],
)
def test_as_many_matrices_as_pay_are_turned(
    grad: tuple[int, int], x: tuple[int, int], turned: int
) -> None:
    operands = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in (grad, x)]
    text = jax.jit(over_rows).lower(*operands).as_text()
    # Before, between and after: three for each.
    assert text.count("optimization_barrier") == 3 * turned


def test_other_platforms_take_the_rows_as_they_lie() -> None:
    """Two leading dims made one would move what is sharded along the second of them."""
    operands = [jax.ShapeDtypeStruct((4, 256, n), jnp.float32) for n in (96, 24)]
    text = jax.jit(over_rows).trace(*operands).lower(lowering_platforms=("tpu",)).as_text()
    assert "optimization_barrier" not in text
    assert "contracting_dims = [0, 1] x [0, 1]" in text


def test_halves_have_the_same_gradients_as_in_eager_torch() -> None:
    torch.manual_seed(0)
    both(F.linear, *(torch.randint(-2, 3, shape).bfloat16() for shape in ((1024, 24), (48, 24))))
