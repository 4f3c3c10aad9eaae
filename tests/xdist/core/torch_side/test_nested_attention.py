"""torch's jagged nested tensors on the device give what they give on the CPU, with gradients."""

import pytest
import torch
import torch.nn.functional as F

import torch_xla  # noqa: F401

# What the CPU computes attention with.
pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype")
SIZES = (2, 4, 0, 3)


def jagged(device, sizes=SIZES, seed=0):
    numbers = torch.Generator().manual_seed(seed)
    rows = [torch.randn(n, 8, generator=numbers) for n in sizes]
    return torch.nested.nested_tensor(rows, layout=torch.jagged, device=device, requires_grad=True)


def heads(x):
    """[batch, length, 8] as [batch, 2, length, 4]."""
    return x.unflatten(-1, [2, 4]).transpose(1, 2)


def agree(run):
    want, got = run("cpu"), run("xla")
    assert all(x.device.type == "xla" for x in got)
    torch.testing.assert_close([x.detach().cpu() for x in got], [x.detach() for x in want])


@pytest.mark.parametrize("scale", [None, 0.3])
def test_attention_within_each_sequence(scale):
    def run(device):
        x = jagged(device)
        q = heads(x)
        out = F.scaled_dot_product_attention(q, q * 2, q + 1, scale=scale)
        out.values().sin().sum().backward()
        assert out.transpose(1, 2).to_padded_tensor(0.0).shape == (4, 4, 2, 4)
        return out.values(), x.grad.values()

    agree(run)


def test_attention_to_sequences_of_other_lengths():
    def run(device):
        x, y = jagged(device), jagged(device, (5, 1, 2, 2), 1)
        out = F.scaled_dot_product_attention(heads(x), heads(y), heads(y))
        out.values().sin().sum().backward()
        return out.values(), x.grad.values(), y.grad.values()

    agree(run)


def test_causal_attention_is_that_of_each_sequence_alone():
    x = jagged("xla", (2, 4, 3))
    out = F.scaled_dot_product_attention(*[heads(x)] * 3, is_causal=True)
    for got, row in zip(out.unbind(), jagged("cpu", (2, 4, 3)).unbind(), strict=True):
        q = heads(row[None])
        want = F.scaled_dot_product_attention(q, q, q, is_causal=True)[0]
        torch.testing.assert_close(got.detach().cpu(), want.detach())


def test_layers_train_on_sequences_of_several_lengths():
    def run(device):
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 8)
        ).to(device)
        x = jagged(device)
        y = model(x) + x
        y.values().sin().sum().backward()
        return y.values(), x.grad.values(), *[p.grad for p in model.parameters()]

    agree(run)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "openxla"])
def test_attention_within_each_sequence_is_captured_by_torch_compile(backend):
    def attended(x):
        return F.scaled_dot_product_attention(heads(x), heads(x), heads(x))

    captured = torch.compile(attended, backend=backend)
    for sizes in (SIZES, SIZES[::-1], [2, 9, 4]):
        slopes = []
        for compute in (attended, captured):
            x = jagged("xla", sizes).requires_grad_()
            compute(x).values().pow(2).sum().backward()
            slopes.append(x.grad.values().cpu())
        torch.testing.assert_close(*slopes)


def test_a_nested_tensor_moves_there_and_back():
    there = jagged("cpu").to("xla")
    assert there.device == there.values().device == torch.device("xla", 0)
    assert torch.equal(there.cpu().values(), jagged("cpu").values())
    assert [row.shape[0] for row in there.unbind()] == list(SIZES)


def test_a_nested_tensor_of_strided_layout_is_refused():
    with pytest.raises(RuntimeError, match=r"pass layout=torch\.jagged"):
        torch.nested.as_nested_tensor([torch.ones(2, device="xla")])
