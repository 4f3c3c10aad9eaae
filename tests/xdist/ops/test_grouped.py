"""Products by groups equal CPU torch's, with gradients, in every layout, without the CPU."""

import jax
import jax.numpy as jnp
import pytest
import torch
from devices_agree import served_by_cpu

from torch_xdist.ops import grouped

# A group of none, one that ends within a tile, one over three tiles.
ENDS = torch.tensor([5, 5, 140, 304], dtype=torch.int32)
LAYOUTS = {
    "rows": ((304, 24), (4, 24, 16)),
    "columns": ((4, 16, 24), (24, 304)),
    "contracted": ((16, 304), (304, 24)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_product_by_groups_and_its_gradients_equal_eager(layout, dtype) -> None:
    torch.manual_seed(0)
    one, other = (torch.randn(shape).to(dtype) for shape in LAYOUTS[layout])
    assert not served_by_cpu(
        lambda a, b, ends: torch._grouped_mm(a, b, offs=ends), one, other, ENDS
    )


def test_without_offsets_it_is_one_product_per_matrix() -> None:
    one, other = torch.randn(4, 16, 24), torch.randn(4, 24, 8)
    assert not served_by_cpu(torch._grouped_mm, one, other)


def test_rows_behind_the_last_offset_are_zero() -> None:
    ends = torch.tensor([2, 4], dtype=torch.int32, device="xla")
    found = torch._grouped_mm(
        torch.ones(8, 8, device="xla"), torch.ones(2, 8, 8, device="xla"), offs=ends
    )
    assert found.sum(dim=1).tolist() == [64.0] * 4 + [0.0] * 4


def test_a_wrong_call_raises_torchs_error() -> None:
    one, other = torch.ones(4, 8, device="xla"), torch.ones(2, 7, 8, device="xla")
    with pytest.raises(RuntimeError, match="Have to provide offsets if there is a 2d matrix"):
        torch._grouped_mm(one, other.new_ones(2, 8, 8))
    with pytest.raises(RuntimeError, match="contraction dimension of mat_a and mat_b must match"):
        torch._grouped_mm(one, other, offs=torch.tensor([2, 4], dtype=torch.int32, device="xla"))


def test_infinities_of_one_group_do_not_reach_another() -> None:
    lhs = jnp.ones((6, 2)).at[4].set(jnp.inf)
    found = grouped.by_contraction(lhs, jnp.ones((6, 3)), jnp.array([4, 2]))
    assert jnp.isfinite(found[0]).all() and jnp.isinf(found[1]).all()


def test_the_loop_of_the_cpu_computes_what_xlas_ragged_product_does() -> None:
    """Which one is for other hardware, whose programs hold no loop."""
    shapes = (300, 8), (4, 8, 6), (4,)
    lhs, rhs, _ = (jax.random.normal(jax.random.key(i), shape) for i, shape in enumerate(shapes))
    for sizes in (jnp.array([0, 200, 0, 90]), jnp.array([300, 0, 0, 0]), jnp.zeros(4, int)):
        want = jax.lax.ragged_dot(lhs, rhs, sizes)
        assert jnp.allclose(grouped.by_rows(lhs, rhs, sizes), want, atol=1e-5)
    exported = jax.export.export(jax.jit(grouped.by_rows), platforms=["tpu"])(lhs, rhs, sizes)
    assert "ragged_dot" in exported.mlir_module() and "while" not in exported.mlir_module()
