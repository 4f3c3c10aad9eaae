"""Attention on a TPU is the splash kernel's where it is long. Nothing runs: rows are recorded."""

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import torch_xdist.core.torch_side.registration  # noqa: F401
import torch_xla
from torch_xdist.ahead import step
from torch_xdist.core.devices import aim

LONG = 512


class Tpu:
    """Of a device that is not here, what is looked at."""

    platform = "tpu"


@pytest.fixture
def on_tpu():
    with aim.at([Tpu()]):
        yield
    step.forget()  # It would run here, with what the next test records.


def operands(t=LONG, d=64, dtype=torch.bfloat16, keys=None, heads=2, kv_heads=2):
    shapes = [(1, heads, t, d), (1, kv_heads, keys or t, d), (1, kv_heads, keys or t, d)]
    return [torch.zeros(shape, dtype=dtype).to("xla") for shape in shapes]


def named(*tensors):
    return torch_xla._XLAC._get_xla_tensors_text([*tensors])


@pytest.mark.on_cpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("is_causal", [True, False])
def test_long_attention_is_the_kernels(on_tpu, dtype, is_causal):
    y = F.scaled_dot_product_attention(*operands(dtype=dtype), is_causal=is_causal)
    assert "attention_by_splash" in named(y) and y.dtype is dtype and y.shape == (1, 2, LONG, 64)


def test_fewer_heads_of_keys_are_not_repeated(on_tpu):
    given = [part.requires_grad_() for part in operands(heads=4, kv_heads=2)]
    y = F.scaled_dot_product_attention(*given, enable_gqa=True)
    y.sum().backward()
    text = named(y, *(part.grad for part in given))
    assert "attention_by_splash_backward" in text and "repeat" not in text
    assert [part.grad.shape for part in given] == [part.shape for part in given]


@pytest.mark.parametrize(
    "given",
    [{"t": 256}, {"d": 48}, {"dtype": torch.float16}, {"t": 128, "keys": 1024}],
    ids=["short", "odd heads", "float16", "few queries"],
)
def test_other_attention_is_written_out(on_tpu, given):
    assert "by_splash" not in named(F.scaled_dot_product_attention(*operands(**given)))


def test_a_mask_is_written_out(on_tpu):
    mask = torch.ones(LONG, LONG, dtype=torch.bool).to("xla")
    y = F.scaled_dot_product_attention(*operands(), attn_mask=mask)
    assert "by_splash" not in named(y)


def test_torchs_switch_asks_for_the_plain_form(on_tpu):
    with sdpa_kernel([SDPBackend.MATH]):
        y = F.scaled_dot_product_attention(*operands())
    assert "by_splash" not in named(y)


def test_float32_that_must_be_exact_is_written_out(on_tpu):
    torch_xla.backends.set_mat_mul_precision("highest")
    try:
        y = F.scaled_dot_product_attention(*operands(dtype=torch.float32))
        half = F.scaled_dot_product_attention(*operands())
    finally:
        torch_xla.backends.set_mat_mul_precision("default")
    assert "by_splash" not in named(y) and "by_splash" in named(half)


def test_on_a_cpu_nothing_of_it_is_used():
    assert "by_splash" not in named(F.scaled_dot_product_attention(*operands()))
