"""Attention on a GPU is cuDNN's where it can be. Nothing runs here: programs are lowered for it."""

import jax
import jax.numpy as jnp
import pytest
import torch
import torch.nn.functional as F
from jax._src.cudnn import fused_attention_stablehlo as of_jax
from torch.nn.attention import SDPBackend, sdpa_kernel

import torch_xdist.core.torch_side.registration  # noqa: F401
import torch_xla
from torch_xdist.ahead import step
from torch_xdist.core.composites import fused_attention
from torch_xdist.core.devices import aim
from torch_xdist.ops.attention import attend_by_cudnn


class Gpu:
    """Of a device that is not here, what is looked at."""

    platform = "gpu"
    compute_capability = "9.0"


@pytest.fixture
def on_gpu(monkeypatch):
    """cuDNN seems to be here, on a GPU of Hopper's."""
    monkeypatch.setattr(of_jax, "check_cudnn_version", lambda: 90800)
    monkeypatch.setattr(of_jax, "check_compute_capability", lambda capability: True)
    monkeypatch.setattr(of_jax, "is_cuda_compute_capability_equal", lambda capability: False)
    monkeypatch.setattr(fused_attention, "is_there", lambda gpu: True)
    with aim.at([Gpu()]):
        yield
    step.forget()  # It would run here, with what the next test records.


def operands(t=16, d=8, dtype=torch.bfloat16, keys=None):
    shapes = [(2, 4, t, d), (2, 4, keys or t, d), (2, 4, keys or t, d)]
    return [torch.zeros(shape, dtype=dtype).to("xla") for shape in shapes]


def named(*tensors):
    return torch_xla._XLAC._get_xla_tensors_text([*tensors])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_are_attended_to_by_cudnn(on_gpu, dtype):
    y = F.scaled_dot_product_attention(*operands(dtype=dtype), is_causal=True)
    assert "attention_by_cudnn" in named(y) and y.dtype is dtype and y.shape == (2, 4, 16, 8)


def test_its_gradient_is_one_row_more(on_gpu):
    given = [part.requires_grad_() for part in operands()]
    F.scaled_dot_product_attention(*given).sum().backward()
    grads = [part.grad for part in given]
    assert all(grad.shape == (2, 4, 16, 8) for grad in grads)
    text = named(*grads)
    assert "attention_by_cudnn" in text and "dot_general" not in text


@pytest.mark.parametrize(
    "given",
    [{"dtype": torch.float32}, {"d": 6}, {"d": 136}, {"keys": 32}],
    ids=["float32", "odd heads", "wide heads", "other keys"],
)
def test_what_cudnn_has_no_form_of_is_written_out(on_gpu, given):
    assert "by_cudnn" not in named(F.scaled_dot_product_attention(*operands(**given)))


def test_a_mask_is_written_out(on_gpu):
    mask = torch.ones(16, 16, dtype=torch.bool).to("xla")
    y = F.scaled_dot_product_attention(*operands(), attn_mask=mask)
    assert "by_cudnn" not in named(y)


def test_torchs_switch_asks_for_the_plain_form(on_gpu):
    with sdpa_kernel([SDPBackend.MATH]):
        y = F.scaled_dot_product_attention(*operands())
    assert "by_cudnn" not in named(y)


@pytest.mark.on_cpu
def test_on_a_cpu_nothing_of_it_is_used():
    assert "by_cudnn" not in named(F.scaled_dot_product_attention(*operands()))


@pytest.mark.parametrize(("capability", "there"), [("7.5", False), ("8.0", True), ("12.0", True)])
def test_older_gpus_have_no_kernels(monkeypatch, capability, there):
    class Other:
        compute_capability = capability

    monkeypatch.setattr(fused_attention, "check_cudnn_version", lambda: 90800)
    assert fused_attention.is_there(Other()) is there


def test_without_cudnn_there_are_none(monkeypatch):
    class Other:
        compute_capability = "9.0"

    def missing():
        raise RuntimeError("cuDNN is not detected.")

    monkeypatch.setattr(fused_attention, "check_cudnn_version", missing)
    assert not fused_attention.is_there(Other())


def test_the_lowered_program_calls_cudnn_both_ways(on_gpu):
    x = jax.ShapeDtypeStruct((2, 4, 128, 64), jnp.bfloat16)

    def both(*operands):
        y, pull = jax.vjp(lambda *a: attend_by_cudnn(*a, True, 0.125), *operands)
        return y, pull(y)

    text = jax.jit(both).trace(x, x, x).lower(lowering_platforms=("cuda",)).as_text()
    assert "__cudnn$fmhaSoftmax" in text and "__cudnn$fmhaSoftmaxBackward" in text
    assert '"CAUSAL"' in text or "CAUSAL" in text
    assert "x128x128x" not in text


def test_an_odd_length_has_a_gradient_too(on_gpu):
    x = jax.ShapeDtypeStruct((2, 4, 197, 64), jnp.bfloat16)

    def both(*operands):
        y, pull = jax.vjp(lambda *a: attend_by_cudnn(*a, False, 0.125), *operands)
        return y, pull(y)

    assert [part.shape for part in jax.tree.leaves(jax.eval_shape(both, x, x, x))] == [x.shape] * 4
    text = jax.jit(both).trace(x, x, x).lower(lowering_platforms=("cuda",)).as_text()
    assert "__cudnn$fmhaSoftmaxBackward" in text and "PADDING" in text
    assert "x198x198x" not in text
    given = [part.requires_grad_() for part in operands(t=17)]
    F.scaled_dot_product_attention(*given).sum().backward()
    assert "attention_by_cudnn" in named(given[0].grad)
