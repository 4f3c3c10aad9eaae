"""torch's `flex_attention` computes on the device what its formula says, with gradients."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from torch.nn.attention.flex_attention import (
    AuxRequest,
    BlockMask,
    create_block_mask,
    flex_attention,
)

import torch_xla
from torch_xdist import metrics
from torch_xdist.dynamo import flex_attention as ours
from torch_xdist.releases import probes

# dynamo looks for the gradient of what it goes on with behind a graph's end, on a CPU too.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
B, H, T, D = 2, 4, 32, 8
PLACES = torch.arange(T)


@pytest.fixture(autouse=True)
def nothing_compiled_before():
    torch._dynamo.reset()


def operands(dtype=torch.float32, kv_heads=H):
    torch.manual_seed(0)
    return [torch.randn(B, heads, T, D, dtype=dtype) for heads in (H, kv_heads, kv_heads)]


def on(device, tensors):
    return [x.to(device).requires_grad_() for x in tensors]


def written_out(query, key, value, change=None, mask=None, scale=D**-0.5):
    scores = query @ key.transpose(-2, -1) * scale
    scores = scores if change is None else change(scores)
    scores = scores if mask is None else scores.masked_fill(~mask, float("-inf"))
    return scores.softmax(-1) @ value


def agree(found, expected, of_found, of_expected):
    """Whether values and gradients do."""
    torch.testing.assert_close(found.cpu(), expected)
    pairs = zip(
        torch.autograd.grad(found.square().sum(), of_found),
        torch.autograd.grad(expected.square().sum(), of_expected),
        strict=True,
    )
    for mine, other in pairs:
        torch.testing.assert_close(mine.cpu(), other, rtol=1e-5, atol=1e-5)


def causal(b, h, q, k):
    return q >= k


CAUSAL = PLACES[:, None] >= PLACES
DISTANCE = PLACES[:, None] - PLACES


@pytest.mark.parametrize(
    "compiled",
    [
        pytest.param(lambda f: f, id="as it is"),
        pytest.param(lambda f: torch.compile(f, backend="aot_eager"), id="compiled"),
        pytest.param(lambda f: torch.compile(f, backend="openxla"), id="compiled for xla"),
    ],
)
@pytest.mark.parametrize(
    ("score_mod", "mask_mod", "change", "mask"),
    [
        pytest.param(None, None, None, None, id="plain"),
        pytest.param(None, causal, None, CAUSAL, id="causal"),
        pytest.param(
            lambda s, b, h, q, k: s + (q - k) * 0.1, None, lambda s: s + DISTANCE * 0.1, None,
            id="changed scores",
        ),
        pytest.param(
            lambda s, b, h, q, k: torch.where(h > 1, s * 2, s), causal,
            lambda s: torch.cat([s[:, :2], s[:, 2:] * 2], 1), CAUSAL, id="both",
        ),
    ],
)  # fmt: skip
def test_values_and_gradients_are_those_of_the_formula(compiled, score_mod, mask_mod, change, mask):
    here, there = on("xla", operands()), on("cpu", operands())
    blocks = None
    if mask_mod is not None:
        blocks = create_block_mask(mask_mod, None, None, T, T, device="xla", BLOCK_SIZE=16)
    found = compiled(flex_attention)(*here, score_mod=score_mod, block_mask=blocks)
    agree(found, written_out(*there, change, mask), here, there)


def test_a_bias_that_the_function_reads_gets_its_gradient():
    here, there = on("xla", operands()), on("cpu", operands())
    (bias,), (expected,) = (on(d, [torch.ones(H, T, T)]) for d in ("xla", "cpu"))
    found = flex_attention(*here, score_mod=lambda s, b, h, q, k: s + bias[h, q, k])
    formula = written_out(*there, lambda s: s + expected)
    agree(found, formula, [*here, bias], [*there, expected])


def test_a_mask_may_read_a_tensor():
    here, there = on("xla", operands()), on("cpu", operands())
    documents = torch.tensor([0] * 10 + [1] * 22)
    mine = documents.to("xla")

    def of_document(b, h, q, k):
        return (mine[q] == mine[k]) & (q >= k)

    blocks = create_block_mask(of_document, None, None, T, T, device="xla", BLOCK_SIZE=16)
    mask = (documents[:, None] == documents) & CAUSAL
    agree(flex_attention(*here, block_mask=blocks), written_out(*there, None, mask), here, there)


@pytest.mark.parametrize("score_mod", [None, lambda s, b, h, q, k: s + 1])
def test_heads_share_keys_and_values(score_mod):
    here, there = on("xla", operands(kv_heads=2)), on("cpu", operands(kv_heads=2))
    found = flex_attention(*here, score_mod=score_mod, scale=0.5, enable_gqa=True)
    whole = [there[0], *(x.repeat_interleave(2, 1) for x in there[1:])]
    agree(found, written_out(*whole, scale=0.5), here, there)


@pytest.mark.parametrize("score_mod", [None, lambda s, b, h, q, k: s + 1])
def test_a_query_that_sees_nothing_gets_zeros(score_mod):
    here = on("xla", operands())
    blocks = create_block_mask(
        lambda b, h, q, k: q > 3, None, None, T, T, device="xla", BLOCK_SIZE=16
    )
    aux = AuxRequest(lse=True)
    found, more = flex_attention(*here, score_mod, blocks, return_aux=aux)
    assert not found[:, :, :4].any() and found[:, :, 4:].all()
    assert torch.isneginf(more.lse[:, :, :4]).all() and torch.isfinite(more.lse[:, :, 4:]).all()
    for gradient in torch.autograd.grad(found.sum(), here):
        assert torch.isfinite(gradient).all()


def test_what_else_is_asked_for_is_that_of_the_scores():
    here, there = on("xla", operands()), operands()
    asked = AuxRequest(lse=True, max_scores=True)
    _, found = flex_attention(*here, score_mod=lambda s, b, h, q, k: s * 3, return_aux=asked)
    scores = there[0] @ there[1].transpose(-2, -1) * D**-0.5 * 3
    torch.testing.assert_close(found.lse.cpu(), scores.logsumexp(-1))
    torch.testing.assert_close(found.max_scores.cpu(), scores.amax(-1))


def test_halves_are_computed_within_in_single_precision():
    here = on("xla", operands(torch.bfloat16))
    found = flex_attention(*here, score_mod=lambda s, b, h, q, k: s + (q - k) * 0.1)
    wide = [x.float() for x in operands(torch.bfloat16)]
    expected = written_out(*wide, lambda s: s + DISTANCE * 0.1)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.cpu().float(), expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("score_mod", [None, lambda s, b, h, q, k: s + (q - k) * 0.1])
def test_autocast_narrows_the_operands_and_nothing_within(score_mod):
    here = on("xla", operands())
    with torch.autocast("xla", dtype=torch.bfloat16):
        found = flex_attention(*here, score_mod=score_mod)
    narrow = [x.detach().to(torch.bfloat16) for x in here]
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, flex_attention(*narrow, score_mod=score_mod), rtol=0, atol=0)
    assert all(torch.isfinite(g).all() for g in torch.autograd.grad(found.float().sum(), here))


def test_a_step_is_one_program_and_reads_nothing():
    here = on("xla", operands())

    def step():
        blocks = create_block_mask(causal, B, None, T, T, device="xla", _compile=True)
        loss = flex_attention(*here, block_mask=blocks).square().sum()
        gradients = torch.autograd.grad(loss, here)
        torch_xla.sync()
        return gradients

    step()
    before = [metrics.metric_data(name)[0] for name in ("CompileTime", "ExecuteTime")]
    step()
    after = [metrics.metric_data(name)[0] for name in ("CompileTime", "ExecuteTime")]
    assert [b - a for a, b in zip(before, after)] == [0, 1]


def test_what_torch_refuses_is_refused_with_its_words():
    query, key, value = on("xla", operands(kv_heads=2))
    with pytest.raises(ValueError, match="Try setting enable_gqa=True for GQA"):
        flex_attention(query, key, value)
    blocks = create_block_mask(causal, None, None, 16, 16, device="xla", BLOCK_SIZE=16)
    with pytest.raises(ValueError, match="was created for a smaller length"):
        flex_attention(query, key, value, block_mask=blocks, enable_gqa=True)


def test_elsewhere_torch_s_own_functions_run_and_dynamo_looks_into_them():
    query, key, value = operands()
    blocks = create_block_mask(causal, None, None, T, T, device="cpu", BLOCK_SIZE=16)
    assert isinstance(blocks, BlockMask) and blocks.kv_indices.device.type == "cpu"
    compiled = torch.compile(flex_attention, backend="eager", fullgraph=True)
    found = compiled(query, key, value, block_mask=blocks)
    torch.testing.assert_close(found, written_out(query, key, value, None, CAUSAL))
    with pytest.raises(NotImplementedError, match="backward on CPU"):
        flex_attention(query.requires_grad_(), key, value)


def test_who_imported_the_function_before_has_it_too():
    code = """
import inspect, torch
from torch.nn.attention.flex_attention import flex_attention
before = inspect.signature(flex_attention)
import torch_xla
assert inspect.signature(flex_attention) == before
x = torch.ones(1, 1, 4, 2, device="xla")
assert flex_attention(x, x, x).tolist() == x.tolist()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr


def left_alone():
    """Whether a module of torch's, of functions that stand in one another, stays as it is."""

    def around(f):
        return lambda *args: f(*args)

    module = SimpleNamespace(flex_attention=around(min), create_block_mask=around(max))
    before = dict(vars(module))
    ours._complete(module)
    return vars(module) == before


def test_a_torch_without_what_it_takes_is_left_as_it_is(monkeypatch):
    assert left_alone()
    missing = probes.Probe("torch.gone", "flex_attention", "torch refuses them")
    monkeypatch.setattr(probes, "findings", lambda moments: [probes.Finding(missing, False)])
    assert left_alone()
