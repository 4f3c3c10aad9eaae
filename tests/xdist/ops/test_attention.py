"""Attention is one row, forward and backward, and equals eager torch's."""

import re

import jax
import jax.numpy as jnp
import pytest
import torch
import torch.nn.functional as F
from devices_agree import both

import torch_xla
from torch_xdist.ops import attention


def queries(heads: int = 4, kv_heads: int = 4, length: int = 6) -> list[torch.Tensor]:
    torch.manual_seed(0)
    shapes = [(2, h, length, 8) for h in (heads, kv_heads, kv_heads)]
    return [torch.randn(shape, dtype=torch.float64) for shape in shapes]


def test_attention_with_and_without_the_causal_mask_equals_eager() -> None:
    both(F.scaled_dot_product_attention, *queries())
    both(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3),
        *queries(),
    )


@pytest.mark.parametrize("is_causal", [False, True])
def test_many_queries_and_keys_equal_eager(is_causal: bool) -> None:
    """So many that a CPU sums over the queries the other way around."""
    torch.manual_seed(0)
    lengths = (512, 512, 512) if is_causal else (512, 256, 256)
    tensors = [torch.randn(1, 2, n, 4, dtype=torch.float64) for n in lengths]
    both(lambda *a: F.scaled_dot_product_attention(*a, is_causal=is_causal), *tensors)


@pytest.mark.on_cpu
@pytest.mark.parametrize("lead", [(2,), (2, 3)], ids=str)
def test_no_product_of_many_weights_reads_them_against_their_order(lead: tuple[int, ...]) -> None:
    """XLA turned the products back around where there were several leading dims."""
    x = jnp.zeros((*lead, 384, 8))

    def gradients(*operands: jax.Array) -> tuple[jax.Array, ...]:
        return jax.vjp(lambda *a: attention.attend(*a, None, False, 1.0), *operands)[1](x)

    options = {"xla_disable_hlo_passes": "cse_barrier_expander"}
    program = jax.jit(gradients).lower(x, x, x).compile(compiler_options=options).as_text()
    products = re.findall(r" dot\(.*lhs_contracting_dims=\{(\d)\}", program)
    assert len(products) >= 5  # a layer's, forward and backward
    assert {*products} == {str(len(lead) + 1)}


def test_an_added_mask_has_a_gradient() -> None:
    mask = torch.randn(2, 1, 6, 6, dtype=torch.float64)
    both(F.scaled_dot_product_attention, *queries(), mask)


def test_a_query_that_may_see_no_key_gets_zeros() -> None:
    mask = torch.rand(6, 6) > 0.4
    mask[2] = False
    both(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, mask.to(q.device)), *queries())


def test_grouped_heads_equal_eager() -> None:
    both(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True), *queries(4, 2))


@pytest.mark.parametrize("lead", [(), (3,), (2, 2, 2)], ids=str)
def test_halves_without_a_batch_of_heads_are_rounded_at_the_ends_only(lead) -> None:
    torch.manual_seed(0)
    tensors = [torch.randn(*lead, n, 8).bfloat16() for n in (3, 6, 6)]

    def gradients(device: str, dtype: torch.dtype) -> list[torch.Tensor]:
        leaves = [t.to(dtype).to(device).detach().requires_grad_() for t in tensors]
        out = F.scaled_dot_product_attention(*leaves)
        return [t.cpu().bfloat16() for t in (out, *torch.autograd.grad(out.sum(), leaves))]

    for ours, exact in zip(gradients("xla", torch.bfloat16), gradients("cpu", torch.float64)):
        torch.testing.assert_close(ours, exact, rtol=0.008, atol=1e-6)


@pytest.mark.parametrize("masked", [False, True])
def test_halves_are_as_near_to_the_exact_result_as_eagers(masked: bool) -> None:
    tensors = [3 * t.bfloat16() for t in queries()]
    if masked:
        tensors.append(torch.linspace(-2, 2, 36).reshape(6, 6).bfloat16())

    def results(device: str, dtype: torch.dtype) -> list[torch.Tensor]:
        leaves = [t.to(dtype).to(device).detach().requires_grad_() for t in tensors]
        out = F.scaled_dot_product_attention(*leaves)
        found = (out, *torch.autograd.grad(out.sum(), leaves))
        return [t.detach().cpu().double() for t in found]

    runs = [("xla", torch.bfloat16), ("cpu", torch.bfloat16), ("cpu", torch.float64)]
    for ours, theirs, exact in zip(*(results(*run) for run in runs)):
        assert (ours - exact).norm() <= 1.1 * (theirs - exact).norm()


def test_one_row_is_recorded_forward_and_one_backward() -> None:
    torch_xla.sync()
    q, k, v = (t.to("xla").requires_grad_() for t in queries())
    F.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()
    names = [row[0].name for row in q.value.trace.rows]
    assert names.count("scaled_dot_product_attention") == 1
    assert names.count("scaled_dot_product_attention_backward") == 1
    assert "aten.bmm.default" not in names


def test_dropout_goes_torchs_way() -> None:
    q, k, v = (t.to("xla") for t in queries())
    out = F.scaled_dot_product_attention(q, k, v, dropout_p=0.5)
    assert out.shape == q.shape
    assert out.isfinite().all().item()


def test_the_mean_of_a_long_rows_gradient_is_torchs_with_a_mask_too() -> None:
    mask = torch.rand(128, 128) > 0.4
    mask[2] = False
    both(
        lambda *a: F.scaled_dot_product_attention(*a, attn_mask=mask.to(a[0].device)),
        *queries(length=128),
    )


@pytest.mark.parametrize(
    ("causal", "length"), [(True, 6), (False, 6), (True, 128)], ids="causal whole many".split()
)
def test_the_second_derivative_equals_eager(causal: bool, length: int) -> None:
    def penalty(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            out = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return torch.autograd.grad(out.sin().sum(), k, create_graph=True)[0]

    both(penalty, *queries(length=length))


@pytest.mark.parametrize("lengths", [(200, 200), (230, 100), (195, 400), (800, 800)], ids=str)
def test_causal_attention_by_blocks_of_queries_equals_eager(lengths: tuple[int, int]) -> None:
    torch.manual_seed(0)
    t, s = lengths
    tensors = [torch.randn(1, 2, n, 4, dtype=torch.float64) for n in (t, s, s)]
    both(lambda *a: F.scaled_dot_product_attention(*a, is_causal=True), *tensors)


@pytest.mark.on_cpu
def test_a_block_has_the_keys_alone_that_its_queries_may_see() -> None:
    x = jnp.zeros((2, 256, 8))
    program = jax.jit(lambda x: attention.attend(x, x, x, None, True, 1.0)).lower(x).as_text()
    products = re.findall(r"dot_general .*-> tensor<2x(\d+)x(\d+)xf", program)
    assert sorted({*products} - {("128", "8")}) == [("128", "128"), ("128", "256")]


def test_a_nan_among_later_keys_reaches_no_earlier_query() -> None:
    tensors = [torch.randn(1, 2, 256, 8) for _ in range(3)]
    tensors[1][:, :, 100] = float("nan")
    out = F.scaled_dot_product_attention(*[x.to("xla") for x in tensors], is_causal=True).cpu()
    assert out[:, :, :100].isfinite().all()
    assert out[:, :, 100:].isnan().all()


def test_halves_of_many_causal_queries_are_as_near_to_the_exact_gradients_as_eagers() -> None:
    tensors = [t.bfloat16() for t in queries(length=256)]

    def gradients(device: str, dtype: torch.dtype) -> list[torch.Tensor]:
        leaves = [t.to(dtype).to(device).detach().requires_grad_() for t in tensors]
        out = F.scaled_dot_product_attention(*leaves, is_causal=True)
        return [t.cpu().double() for t in torch.autograd.grad(out.sin().sum(), leaves)]

    runs = [("xla", torch.bfloat16), ("cpu", torch.bfloat16), ("cpu", torch.float64)]
    for ours, theirs, exact in zip(*(gradients(*run) for run in runs)):
        assert (ours - exact).norm() <= 1.1 * (theirs - exact).norm()
