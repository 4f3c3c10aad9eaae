"""Repeats of a fixed length, products of int8, and kernels over the parts that devices hold."""

import numpy as np
import pytest
import torch
from devices_agree import served_by_cpu
from spmd_process import SpmdProcess

import torch_xla.distributed.spmd as xs
from torch_xdist.errors import ArgumentError
from torch_xla.experimental.custom_kernel import (
    _shard_map,
    flash_attention,
    repeat_with_fixed_output_size,
)
from torch_xla.experimental.splash_attention import SplashAttentionConfig, splash_attention

four = SpmdProcess(4)


@pytest.mark.parametrize("length", [30, 60], ids=["cut-off", "filled-up"])
def test_repeats_have_the_length_they_are_told(length) -> None:
    repeats = torch.tensor([0, 1, 2, 0, 4, 0, 6, 7, 8, 9])

    def run(x, repeats):
        return repeat_with_fixed_output_size(x, repeats, length)

    x = torch.arange(10.0)
    assert served_by_cpu(run, x, repeats) == []
    whole = x.repeat_interleave(repeats)
    expected = torch.cat([whole, whole[-1:].expand(60)])[:length]
    assert torch.equal(run(x, repeats), expected)


def test_int8_products_are_in_the_dtype_of_the_activation() -> None:
    torch.manual_seed(0)
    w, scale = torch.randint(-128, 128, (8, 6), dtype=torch.int8), torch.rand(8) / 127

    def run(x, w, scale):
        return torch.ops.xla.quantized_matmul_int8(x.detach(), w, scale.detach())

    assert served_by_cpu(run, torch.randn(3, 6), w, scale) == []
    half = run(torch.randn(3, 6, dtype=torch.bfloat16), w, scale.bfloat16())
    assert half.dtype == torch.bfloat16
    with pytest.raises(ArgumentError, match="quant_block_size is not supported; use"):
        torch.ops.xla.quantized_matmul_int8(torch.randn(3, 6), w, scale, None, scale)


def test_wrong_arguments_are_refused() -> None:
    x = torch.ones(2, 2)
    with pytest.raises(ArgumentError, match=r"input has shape \[2, 2\] and repeats \[2, 2\]; both"):
        repeat_with_fixed_output_size(x, x, 3)
    with pytest.raises(ArgumentError, match="_shard_map: 1 arguments for 2 input_specs; give one"):
        _shard_map(torch.neg, None, [None, None], [None])(x)  # type: ignore[arg-type]


def sharded(mesh, spec, *tensors):
    return [
        xs.mark_sharding(t.to("xla"), mesh, spec).global_tensor.requires_grad_() for t in tensors
    ]


@four
def test_each_device_attends_on_its_part_of_batch_and_heads():
    mesh, spec = xs.Mesh(np.arange(4), (2, 2), ("data", "model")), ("data", "model", None, None)
    torch.manual_seed(0)
    # In float32 differences of large terms leave as much as six units in the last place.
    q, k, v = (torch.randn(2, 4, 6, 8).double().requires_grad_() for _ in range(3))
    ids = torch.tensor([[0, 0, 1, 1, 1, 2], [0, 1, 1, 2, 2, 2]])
    there = sharded(mesh, spec, *(t.detach() for t in (q, k, v)))
    rest = {"partition_spec": spec, "mesh": mesh}
    segments = ids.to("xla")
    found = flash_attention(*there, True, segments, segments, **rest)
    expected = flash_attention(q, k, v, True, ids, ids)
    torch.testing.assert_close(found.detach().cpu(), expected.detach())
    grads = torch.autograd.grad(found.square().sum(), there)
    wanted = torch.autograd.grad(expected.square().sum(), (q, k, v))
    torch.testing.assert_close([g.cpu() for g in grads], list(wanted))


@four
def test_splash_attention_runs_over_the_mesh_of_its_settings():
    mesh = xs.Mesh(np.arange(4), (2, 2), ("data", "fsdp"))
    config, spec = SplashAttentionConfig(mesh=str(mesh)), (("data", "fsdp"), None, None, None)
    q, k, v = (torch.randn(4, 2, 6, 8) for _ in range(3))
    there = sharded(mesh, spec, q, k, v)
    found = splash_attention(*there, config.to_json())
    expected = splash_attention(q, k, v, SplashAttentionConfig().to_json())
    torch.testing.assert_close(found.detach().cpu(), expected)
    assert torch.autograd.grad(found.sum(), there)[1].shape == k.shape
    with pytest.raises(
        ArgumentError, match="a batch of 2 over 4 devices, which does not divide it"
    ):
        splash_attention(*(t[:2] for t in there), config.to_json())


@four
def test_a_function_over_the_parts_makes_the_whole():
    mesh = xs.Mesh(np.arange(4), (2, 2), ("x", "y"))
    seen = []

    def double(part, factor):
        seen.append(tuple(part.shape))
        return part * factor, part

    both = _shard_map(double, mesh, [("x", "y"), None], [("x", "y"), ("x", "y")])
    x = torch.arange(8.0).reshape(2, 4)
    twice, once = both(x.to("xla"), 2)
    assert seen == [(1, 2)]
    assert torch.equal(twice.cpu(), 2 * x) and torch.equal(once.cpu(), x)
