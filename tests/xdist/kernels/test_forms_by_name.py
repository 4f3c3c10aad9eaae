"""Each kernel's forms by torch_xla's names: with values, without, and JAX's."""

import jax
import jax.numpy as jnp
import pytest
import torch

import torch_xla.experimental.custom_kernel as kernels
import torch_xla.experimental.splash_attention as splash
from torch_xla.experimental.xla_quantized_matmul import quantized_matmul

LENGTHS = torch.tensor([5, 12], dtype=torch.int32)
ORDER = torch.tensor([[3, 0, 5], [2, 4, 1]], dtype=torch.int32)


def of_attention() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(2, 2, 6, 8) for _ in range(3)]


def of_pages(*query: int) -> list[torch.Tensor]:
    """Queries; keys and values of 2 heads in 6 pages of 4; the pages of 2 sequences."""
    torch.manual_seed(0)
    pages = torch.randn(2, 2, 6, 4, 8)
    return [torch.randn(*query, 4, 8), pages[0], pages[1], LENGTHS, ORDER]


def of_ragged() -> list[torch.Tensor]:
    torch.manual_seed(0)
    ends, count = torch.tensor([0, 3, 6]).int(), torch.tensor([2]).int()
    return [torch.randn(6, 4, 8), torch.randn(6, 4, 4, 8), LENGTHS, ORDER, ends, count]


def of_groups() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(6, 8), torch.randn(2, 8, 3), torch.tensor([4, 2], dtype=torch.int32)]


def of_int8() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(3, 6), torch.randint(-128, 128, (8, 6), dtype=torch.int8), torch.rand(8)]


# name: the forms with and without values, tensors, what follows them, the shape of the result
FORMS = {
    "flash_attention": (
        kernels.flash_attention_xla, kernels.flash_attention_non_xla,
        of_attention(), (True,), (2, 2, 6, 8),
    ),
    "paged_attention": (
        kernels.paged_attention_xla, kernels.paged_attention_non_xla,
        of_pages(2), (2, None, 3.0), (2, 4, 8),
    ),
    "multi_queries_paged_attention": (
        kernels.multi_queries_paged_attention_xla, kernels.multi_queries_paged_attention_non_xla,
        [*of_pages(2, 3), torch.tensor([3, 2]).int()], (2, 2, True), (2, 3, 4, 8),
    ),
    "ragged_paged_attention": (
        kernels.ragged_paged_attention_xla, kernels.ragged_paged_attention_non_xla,
        of_ragged(), (0.5,), (6, 4, 8),
    ),
    "gmm": (kernels.gmm_xla, kernels.gmm_non_xla, of_groups(), (), (6, 3)),
    "quantized_matmul_int8": (
        kernels.quantized_matmul_int8_xla, kernels.quantized_matmul_int8_non_xla,
        of_int8(), (), (3, 8),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_the_form_for_the_device_computes_what_plain_torch_does(name) -> None:
    form, _, tensors, rest, shape = FORMS[name]
    expected = getattr(torch.ops.xla, name)(*tensors, *rest)
    found = form(*(t.to("xla") for t in tensors), *rest)
    assert found.device.type == "xla" and found.shape == shape
    torch.testing.assert_close(found.cpu(), expected)


@pytest.mark.parametrize("name", FORMS)
def test_the_form_without_values_has_their_shape_and_warns_where_there_are_some(name) -> None:
    _, form, tensors, rest, shape = FORMS[name]
    empty = form(*(t.to("meta") for t in tensors), *rest)
    assert (empty.shape, empty.dtype, empty.device.type) == (shape, torch.float32, "meta")
    with pytest.warns(UserWarning, match=r"XLA .* should only be applied to tensors on XLA device"):
        assert form(*tensors, *rest).shape == shape


def test_the_names_say_the_same_as_their_operators() -> None:
    q, k, v = of_attention()
    there = [t.to("xla") for t in (q, k, v)]
    scores = (q @ k.transpose(-1, -2)).masked_fill(~torch.ones(6, 6).bool().tril(), -torch.inf)
    found = kernels.flash_attention_xla(*there, causal=True).cpu()
    torch.testing.assert_close(found, scores.softmax(-1) @ v)
    lhs, rhs, sizes = of_groups()
    expected = torch.cat([lhs[:4] @ rhs[0], lhs[4:] @ rhs[1]])
    found = kernels.gmm_xla(*(t.to("xla") for t in (lhs, rhs, sizes)), tiling=[4, 4, 4])
    torch.testing.assert_close(found.cpu(), expected)
    x, w, scale = of_int8()
    exact = (x @ w.float().t()) * scale
    torch.testing.assert_close(kernels.quantized_matmul_int8(x, w, scale), exact)
    torch.testing.assert_close(quantized_matmul(x, w, scale), exact)
    with_zero = quantized_matmul(x, w, scaler=scale, zero_point=scale)
    torch.testing.assert_close(with_zero, exact - x.sum(-1, keepdim=True) * scale)


def test_an_attention_over_one_tensor_of_pages_looks_like_its_queries() -> None:
    q, kv, *_ = (t.to("meta") for t in of_ragged())
    assert kernels.non_xla_ragged_paged_attention(q, kv, "paged").shape == (6, 4, 8)
    with pytest.warns(UserWarning, match="XLA ragged attention should only be applied to tensors"):
        kernels.non_xla_ragged_paged_attention(q, torch.ones(2), "ragged")


def test_fake_passes_of_flash_attention_have_the_shapes_of_real_ones() -> None:
    q, k, v = of_attention()
    k, v = torch.cat([k, k], 2), torch.cat([v, v], 2)
    ab = torch.randn(2, 2, 6, 12)
    given = q.bfloat16(), k.bfloat16(), v.bfloat16(), False, None, None, 1.0
    for bias in (None, ab.bfloat16()):
        real = kernels.fa_custom_forward(*given, bias, None, None, [True] * 8)
        fake = kernels.fa_custom_forward_fake(*given, bias, None, None, [True] * 8)
        assert [(t.shape, t.dtype) for t in fake] == [(t.shape, t.dtype) for t in real]
        (out, *_, total, top, _), grad = real, torch.ones_like(q).bfloat16()
        rest = None, None, bias, False, 1.0, None, None, q.shape, k.shape, None, [True] * 8
        saved = grad, *given[:3], out, total, top, *rest
        made = kernels.fa_custom_backward(*saved)
        fakes = kernels.fa_custom_backward_fake(*saved)
        assert [(t.shape, t.dtype) for t in fakes] == [(t.shape, t.dtype) for t in made]


def test_fake_passes_of_splash_attention_have_the_shapes_of_real_ones() -> None:
    q, k, v = of_attention()
    given = q, k[:, :1], v[:, :1], splash.SplashAttentionConfig().to_json(), None, True, None
    real, fake = splash.sa_custom_forward(*given), splash.sa_custom_forward_fake(*given)
    assert [t.shape for t in fake] == [t.shape for t in real]
    real = splash.sa_custom_backward(torch.ones_like(q), *given)
    fake = splash.sa_custom_backward_fake(torch.ones_like(q), *given)
    assert [t.shape for t in fake] == [t.shape for t in real]


def test_splash_attention_is_a_function_of_jax_a_row_and_one_of_autograd() -> None:
    q, k, v = of_attention()
    config = splash.SplashAttentionConfig()
    expected = splash.splash_attention(q, k, v, config.to_json())
    arrays = [jnp.asarray(t.numpy()) for t in (q, k, v)]
    found = splash.splash_attention_jax_wrapper(
        *arrays, None, causal=True, config=config, attn_logits_soft_cap=None
    )
    torch.testing.assert_close(torch.from_dlpack(found), expected)
    there = [t.to("xla").requires_grad_() for t in (q, k, v)]
    out = splash.SplashAttention.apply(*there, config.to_json(), None, True, None)
    torch.testing.assert_close(out.detach().cpu(), expected)
    grads = torch.autograd.grad(out.sum(), there)
    call = splash.tpu_splash_attention_jax_call_wrapper
    row, *nothing = call(*there, config, None, True)
    torch.testing.assert_close(row.detach().cpu(), expected)
    assert nothing == [None, None]
    again = call(*there, config, None, True, is_forward=False, grad_output=torch.ones_like(out))
    torch.testing.assert_close([g.cpu() for g in again], [g.cpu() for g in grads])


def test_the_settings_of_splash_attention_are_torch_xlas() -> None:
    config = splash.SplashAttentionConfig()
    blocks = [
        config.sa_block_q, config.sa_block_kv, config.sa_block_kv_compute, config.sa_block_q_dkv,
        config.sa_block_kv_dkv, config.sa_block_kv_dkv_compute, config.sa_block_q_dq,
        config.sa_block_kv_dq,
    ]  # fmt: skip
    assert blocks == [2048] * 8 and config.sa_use_fused_bwd_kernel
    layouts = {config.sa_q_layout, config.sa_k_layout, config.sa_v_layout}
    assert layouts == {"HEAD_DIM_MINOR"}
    assert config.qkv_partition_spec == (("data", "fsdp"), None, None, None)
    assert config.segment_ids_partition_spec == (("data", "fsdp"), None)
    assert not config.attentiontype_local_sliding and config.slide_window_size is None


def test_the_settings_of_flash_attention_are_torch_xlas() -> None:
    of = kernels.FlashAttention
    assert (of.MIN_BLOCK_SIZE, of.NUM_LANES, of.NUM_SUBLANES) == (128, 128, 8)
    assert of.DEFAULT_MASK_VALUE == kernels.DEFAULT_MASK_VALUE
    assert -0.7 * torch.finfo(torch.float32).max == kernels.DEFAULT_MASK_VALUE
    assert of.DEFAULT_BLOCK_SIZES["block_q"] == 512 and of.DEFAULT_BLOCK_SIZES["block_b"] == 2


def test_tensors_are_told_to_jax_by_shape_and_dtype() -> None:
    told = kernels.to_jax_shape_dtype_struct(torch.ones(2, 3, dtype=torch.bfloat16))
    assert told == jax.ShapeDtypeStruct((2, 3), jnp.bfloat16)
    pairs = {torch.float32: "float32", torch.int8: "int8", torch.bool: "bool"}
    for dtype, name in pairs.items():
        assert jnp.dtype(kernels.convert_torch_dtype_to_jax(dtype)).name == name
    with pytest.raises(TypeError, match="quint8"):
        kernels.convert_torch_dtype_to_jax(torch.quint8)
