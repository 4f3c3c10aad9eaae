"""Splash attention on the device equals that in plain torch, with gradients."""

import pytest
import torch
from devices_agree import served_by_cpu
from torch._subclasses.fake_tensor import FakeTensorMode

from torch_xdist.errors import ArgumentError
from torch_xla.experimental.splash_attention import SplashAttentionConfig, splash_attention


def operands() -> list[torch.Tensor]:
    """Four heads of queries, two of keys and values."""
    torch.manual_seed(0)
    return [torch.randn(2, heads, 6, 8) for heads in (4, 2, 2)]


PLAIN = SplashAttentionConfig()
WINDOW = SplashAttentionConfig(attentiontype_local_sliding=True, slide_window_size=2)


def test_causal_attention_by_segments_and_its_gradients_equal_plain_torch() -> None:
    segments = torch.tensor([[0, 0, 1, 1, 1, 2], [0, 1, 1, 2, 2, 2]])

    def attend(q, k, v, ids):
        return splash_attention(q, k, v, PLAIN.to_json(), ids)

    assert served_by_cpu(attend, *operands(), segments) == []


def test_a_window_and_a_soft_cap_equal_plain_torch() -> None:
    def attend(q, k, v):
        return splash_attention(q, k, v, WINDOW.to_json(), None, False, 2.0)

    assert served_by_cpu(attend, *operands()) == []


def test_its_gradients_have_gradients() -> None:
    def attend(q, k, v):
        return splash_attention(q, k, v, WINDOW.to_json(), None, True, 2.0)

    def second(*qkv):
        first = torch.autograd.grad(attend(*qkv).square().sum(), qkv, create_graph=True)
        return torch.autograd.grad(sum(g.sin().sum() for g in first), qkv)

    there = [t.double().requires_grad_() for t in operands()]
    small = torch.rand(1, 1, 2, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: attend(x, x * 2, x * x), small)
    found = second(*(t.detach().to("xla").requires_grad_() for t in there))
    torch.testing.assert_close([grad.cpu() for grad in found], [*second(*there)])


def test_causal_attention_of_grouped_heads_is_torchs() -> None:
    q, k, v = operands()
    expected = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=True, scale=1.0, enable_gqa=True
    )
    torch.testing.assert_close(splash_attention(q, k, v, PLAIN.to_json()), expected)


def test_the_settings_come_back_from_their_text() -> None:
    assert SplashAttentionConfig.from_json(WINDOW.to_json()) == WINDOW
    assert isinstance(hash(WINDOW), int)


def test_fake_tensors_have_the_shapes_of_the_results() -> None:
    with FakeTensorMode() as mode:
        q, k, v = (mode.from_tensor(t).requires_grad_() for t in operands())
        out = splash_attention(q, k, v, PLAIN.to_json())
        assert out.shape == q.shape
        assert torch.autograd.grad(out.sum(), k)[0].shape == k.shape


def test_a_window_without_a_size_is_refused() -> None:
    config = SplashAttentionConfig(attentiontype_local_sliding=True).to_json()
    with pytest.raises(
        ArgumentError, match="attentiontype_local_sliding without a slide_window_si"
    ):
        splash_attention(*operands(), config)
