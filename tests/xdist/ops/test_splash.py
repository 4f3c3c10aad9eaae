"""JAX's splash kernels, interpreted on a CPU, against attention that is written out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from torch_xdist.errors import ReleaseError
from torch_xdist.ops import splash
from torch_xdist.ops.attention import attend


@pytest.fixture
def interpreted(monkeypatch):
    monkeypatch.setattr(splash, "_interprets", [True])


def operands(heads, kv_heads, t, s, d=64):
    drawn = np.random.default_rng(0)
    shapes = (1, heads, t, d), (1, kv_heads, s, d), (1, kv_heads, s, d), (1, heads, t, d)
    return [jnp.asarray(drawn.standard_normal(shape), jnp.float32) for shape in shapes]


@pytest.mark.parametrize(
    ("heads", "kv_heads", "t", "s", "is_causal"),
    [
        (2, 1, 128, 128, True),
        pytest.param(4, 2, 100, 130, False, marks=pytest.mark.long),
        pytest.param(2, 2, 130, 130, True, marks=pytest.mark.long),
    ],
    ids=["causal", "grouped heads of odd lengths", "causal of an odd length"],
)
def test_results_and_gradients_are_those_written_out(heads, kv_heads, t, s, is_causal, interpreted):
    *given, grad = operands(heads, kv_heads, t, s)

    def plain(q, k, v):
        k, v = (jnp.repeat(x, heads // kv_heads, 1) for x in (k, v))
        return attend(q, k, v, None, is_causal, 0.3)

    kept = splash.attend(is_causal, 0.3, *given)
    grads = splash.gradients(is_causal, 0.3, given, kept, [grad, None])
    expected, back = jax.vjp(plain, *given)
    for one, other in zip((kept[0], *grads), (expected, *back(grad))):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize(
    ("length", "block"), [(4096, 1024), (1536, 512), (1025, 128), (7168, 1024), (8000, 1024)]
)
def test_a_block_is_the_largest_that_adds_little(length, block):
    assert splash.block_of(length) == block


def test_what_is_lowered_for_a_tpu_has_nothing_of_the_size_of_all_scores():
    x = jax.ShapeDtypeStruct((1, 2, 2048, 64), jnp.bfloat16)

    def both(*operands):
        kept = splash.attend(True, 0.125, *operands)
        return kept, splash.gradients(True, 0.125, operands, kept, kept)

    text = jax.jit(both).trace(x, x, x).lower(lowering_platforms=("tpu",)).as_text()
    assert "tpu_custom_call" in text and "2048x2048" not in text


@pytest.mark.parametrize(
    ("t", "is_causal", "is_backward", "products"),
    [(2048, False, False, 2), (2048, True, False, 2 * 3 / 4), (2048, True, True, 5 * 3 / 4),
     (8192, False, True, 7)],
)  # fmt: skip
def test_what_the_kernels_compute_is_counted_by_blocks(t, is_causal, is_backward, products):
    found = splash.flops((2, 3, t, 64), (2, 1, t, 64), is_causal, is_backward=is_backward)
    assert found == products * 2 * 2 * 3 * t * t * 64


def test_a_jax_without_the_backward_kernels_is_named(monkeypatch):
    monkeypatch.setattr(splash, "_kernels", lambda: (object(), object()))
    with pytest.raises(ReleaseError, match=r"has no _splash_attention_bwd, with which long"):
        splash.gradients(True, 1.0, [], [], [])
