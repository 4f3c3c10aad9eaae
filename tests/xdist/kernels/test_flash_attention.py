"""Flash attention on the device equals that in plain torch, which equals torch's own attention."""

import pytest
import torch
from devices_agree import both, served_by_cpu
from torch._subclasses.fake_tensor import FakeTensorMode

import torch_xla.experimental.custom_kernel as kernels
from torch_xdist.errors import ArgumentError
from torch_xla.experimental.custom_kernel import flash_attention


def operands(*leading: int) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(*leading, 3, 5, 4, dtype=torch.float64) for _ in range(3)]


SEGMENTS = torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, 2, 2]])


@pytest.mark.parametrize("causal", [False, True])
def test_it_is_attention(causal) -> None:
    q, k, v = (t.requires_grad_() for t in operands(2))
    found = flash_attention(q, k, v, causal, sm_scale=0.5)
    expected = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=causal, scale=0.5
    )
    torch.testing.assert_close(found, expected)
    grads = [torch.autograd.grad(out.square().sum(), (q, k, v)) for out in (found, expected)]
    torch.testing.assert_close(*grads)
    assert served_by_cpu(lambda *t: flash_attention(*t, causal, sm_scale=0.5), *operands(2)) == []


def test_with_segments_and_a_bias_it_and_its_gradients_equal_plain_torch() -> None:
    bias = torch.randn(1, 3, 5, 5, dtype=torch.float64)

    def attend(q, k, v, bias, ids):
        return flash_attention(q, k, v, True, ids, ids, 0.5, ab=bias)

    assert served_by_cpu(attend, *operands(2), bias, SEGMENTS) == []


def test_its_gradients_have_gradients() -> None:
    bias = torch.randn(2, 3, 5, 5, dtype=torch.float64)

    def second(q, k, v, bias):
        # An operand that depends on another one.
        out = flash_attention(
            q, q * k, v, True, SEGMENTS.to(q.device), SEGMENTS.to(q.device), ab=bias
        )
        first = torch.autograd.grad(out.square().sum(), (q, k, bias), create_graph=True)
        return torch.autograd.grad(sum(g.sin().sum() for g in first), (q, k, v, bias))

    there = [t.requires_grad_() for t in (*operands(2), bias)]
    here = [t.detach().to("xla").requires_grad_() for t in there]
    found, expected = second(*here), second(*there)
    for grad, want in zip(found, expected):
        torch.testing.assert_close(grad.cpu(), want)
    small = torch.rand(1, 1, 2, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: flash_attention(x, x * 2, x * x), small)


def test_the_bias_is_scaled_and_segments_are_apart() -> None:
    q, k, v = operands(1)
    bias, ids = torch.randn(1, 3, 5, 5, dtype=q.dtype), SEGMENTS[:1]
    found = flash_attention(q, k, v, False, ids, ids, 0.5, ab=bias)
    other = ids[:, None, :, None] != ids[:, None, None, :]
    mask = (bias * 0.5).masked_fill(other, float("-inf"))
    attention = torch.nn.functional.scaled_dot_product_attention
    torch.testing.assert_close(found, attention(q, k, v, attn_mask=mask, scale=0.5))


def test_more_leading_dims_are_one_batch() -> None:
    ids = SEGMENTS.expand(2, 2, 5).contiguous()
    both(lambda q, k, v, i: flash_attention(q, k, v, False, i, i), *operands(2, 2), ids)


def test_halves_are_rounded_as_plain_torch_rounds_them() -> None:
    q, k, v = (t.bfloat16() for t in operands(2))
    here, there = (
        flash_attention(*(t.to(device) for t in (q, k, v)), True).cpu() for device in ("cpu", "xla")
    )
    exact = flash_attention(q.float(), k.float(), v.float(), True)
    for found in (here, there):
        torch.testing.assert_close(found.float(), exact, rtol=2e-2, atol=2e-2)


def test_the_operator_has_the_gradient_and_is_one_operator_of_a_graph() -> None:
    assert (
        served_by_cpu(lambda q, k, v: torch.ops.xla.flash_attention(q, k, v, True), *operands(2))
        == []
    )

    class Attend(torch.nn.Module):
        def forward(self, q, k, v):
            return flash_attention(q, k, v, causal=True)

    graph = torch.export.export(Attend(), tuple(operands(2))).graph
    assert "xla.fa_custom_forward.default" in [str(node.target) for node in graph.nodes]


def test_fake_tensors_have_the_shapes_of_the_results() -> None:
    with FakeTensorMode() as mode:
        q, k, v = (mode.from_tensor(t).requires_grad_() for t in operands(2))
        out = flash_attention(q, k, v)
        assert out.shape == q.shape
        assert torch.autograd.grad(out.sum(), k)[0].shape == k.shape
        assert torch.ops.xla.flash_attention(q, k, v).shape == q.shape


def test_by_hand_forward_and_backward_make_the_same_gradients() -> None:
    q, k, v = (t.to("xla").requires_grad_() for t in operands(2))
    out = flash_attention(q, k, v, True, sm_scale=0.5)
    expected = torch.autograd.grad(out.sum(), (q, k, v))
    rest = (True, None, None, 0.5, None)
    found, total, top = kernels._fa_custom_forward_single_device(q, k, v, *rest, [True] * 3)
    assert total.shape == top.shape == q.shape[:-1]
    assert kernels._fa_custom_forward_single_device(q, k, v, *rest, [False] * 3)[1] is None
    needed = [True, False, True, False, False, False]
    shapes = list(q.shape), list(k.shape), None
    grads = kernels._fa_custom_backward_single_device(
        torch.ones_like(out),
        q,
        k,
        v,
        found,
        total,
        top,
        None,
        None,
        None,
        True,
        0.5,
        *shapes,
        needed,
    )
    torch.testing.assert_close(found.cpu(), out.detach().cpu())
    assert grads[1] is None and grads[3] is None
    for grad, want in zip(grads[::2], expected[::2]):
        torch.testing.assert_close(grad.cpu(), want.cpu())


def test_the_small_parts_say_what_they_say() -> None:
    x = torch.ones(2, 3)
    assert kernels.safe_empty_like(None) is None and kernels.safe_empty_like(x).shape == (2, 3)
    assert kernels.generate_ctx_need_grad(x.requires_grad_(), 1, None) == [True, False, False]
    padded, missing = kernels._pad_to_block_size(x.detach(), 4, 1)
    assert padded.tolist() == [[1, 1, 1, 0]] * 2 and missing == 1
    assert kernels._pad_to_block_size(padded, 4, 1) == (padded, 0)
    assert kernels._pad_to_block_size(x.detach(), 4, 1, True)[0].min() == torch.finfo(x.dtype).min
    ids = torch.zeros(2, 5, dtype=torch.int32)
    abstract, rows, columns = kernels.FlashAttention.prepare_segment_ids(ids, ids)
    assert rows.shape == (2, 5, 128) and columns.shape == (2, 8, 5) and abstract.q.shape == (2, 5)
    assert kernels.FlashAttention.prepare_segment_ids(None, None) == (None, None, None)


def test_what_cannot_be_is_refused() -> None:
    q, k, v = operands(2)
    with pytest.raises(ArgumentError, match="flash_attention: one of q_segment_ids and kv_segment"):
        flash_attention(q, k, v, False, SEGMENTS)
    with pytest.raises(ArgumentError, match="prepare_segment_ids: one of q_segment_ids and kv_seg"):
        kernels.FlashAttention.prepare_segment_ids(SEGMENTS, None)
    with pytest.raises(
        ArgumentError, match=r"partition_spec \(0, None, None, None\) without a mesh"
    ):
        flash_attention(q, k, v, partition_spec=(0, None, None, None))
    with pytest.warns(
        UserWarning, match="XLA flash attention should only be applied to tensors on"
    ):
        kernels.non_xla_attetion(q, k, v, "flash")
