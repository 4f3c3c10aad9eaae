"""A lowering that raises is a mistake: it is said, counted, and can be made an error."""

import warnings
from collections import Counter

import pytest
import torch

import torch_xdist.core.torch_side.registration  # noqa: F401
import torch_xla
from torch_xdist import metrics, settings
from torch_xdist.core.record import fallback, lowering
from torch_xdist.core.trace.plans import PLANS
from torch_xdist.errors import FallbackError
from torch_xdist.ops.table import LOWERINGS, SHAPED


@pytest.fixture
def broken_lowering(monkeypatch):
    """The lowering of erfinv as a release of JAX that dropped a name would leave it."""

    def erfinv(x):
        raise AttributeError("module 'jax.lax' has no attribute 'erf_inv'")

    monkeypatch.setitem(LOWERINGS, "aten.erfinv.default", erfinv)
    monkeypatch.setattr(fallback, "_told", set())
    PLANS.clear()
    yield
    PLANS.clear()
    monkeypatch.undo()
    settings.reread()


@pytest.mark.usefixtures("broken_lowering")
def test_a_lowering_that_raises_warns_once_counts_and_runs_on_the_cpu():
    x = torch.tensor([0.0, 0.5]).to("xla")
    before = metrics.counter_value("LoweringFailed") or 0
    with pytest.warns(RuntimeWarning) as said:
        found = x.erfinv()
    torch.testing.assert_close(found.cpu(), torch.tensor([0.0, 0.5]).erfinv())
    (warning,) = said
    text = str(warning.message)
    assert "the lowering of aten.erfinv.default(float32[2]) failed (AttributeError: module" in text
    assert "This is a mistake in torch_xdist or a release of JAX it does not know" in text
    assert "test_lowering.py" in text
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x.erfinv()
    assert metrics.counter_value("LoweringFailed") == before + 2


@pytest.mark.usefixtures("broken_lowering")
def test_a_lowering_that_raises_is_an_error_where_fallbacks_are(monkeypatch):
    monkeypatch.setenv("XDIST_FALLBACK", "error")
    settings.reread()
    x = torch.tensor([0.0, 0.5]).to("xla")
    with pytest.raises(
        FallbackError, match=r"erfinv.default has a lowering that fails \(AttributeError: module"
    ) as caught:
        x.erfinv()
    assert isinstance(caught.value.__cause__, AttributeError)


def test_a_lowering_that_tells_the_types_of_its_results_is_no_exception(monkeypatch):
    def broken(*args, **kwargs):
        raise AttributeError("module 'jax.lax' has no attribute 'rsqrt'")

    name = "aten.native_layer_norm.default"
    assert name in SHAPED
    monkeypatch.setitem(LOWERINGS, name, broken)
    monkeypatch.setattr(fallback, "_told", set())
    PLANS.clear()
    x = torch.arange(4.0)
    with pytest.warns(
        RuntimeWarning, match=r"native_layer_norm.default\(.*failed \(AttributeError"
    ):
        found = torch.nn.functional.layer_norm(x.to("xla"), [4])
    torch.testing.assert_close(found.cpu(), torch.nn.functional.layer_norm(x, [4]))
    PLANS.clear()


def test_calls_that_differ_in_sizes_are_tried_a_few_times(monkeypatch):
    name = "aten.erfinv.default"
    tried, usual = [], LOWERINGS[name]

    def seen(x):
        tried.append(x.shape)
        return usual(x)

    for table in (LOWERINGS, lowering._ORIGINALS):
        monkeypatch.setitem(table, name, seen)
    monkeypatch.setattr(lowering, "_times", Counter())
    for n in range(11, 18):
        torch.ones(n, n, device="xla").erfinv()
    assert tried == [(n, n) for n in range(11, 11 + lowering._TRIED)]
    # Other ranks, dtypes, and sizes of 0 and 1 are other calls.
    for x in (torch.ones(19), torch.ones(19, 1), torch.ones(0, 19), torch.ones(19, 19).double()):
        x.to("xla").erfinv()
    assert len(tried) == lowering._TRIED + 4
    torch_xla.sync()


def test_calls_of_other_dtypes_dims_and_operands_are_of_other_kinds():
    x = torch.ones(12, 13, 14, device="xla")
    calls = [
        lambda: x.to(torch.bfloat16), lambda: x.to(torch.int32), lambda: x.sum(1),
        lambda: x.sum(2), lambda: x.flip(0), lambda: x.flip(0, 1), lambda: x.clamp(0.0, 3.0),
        lambda: x.clamp(0.0), lambda: x.sum(1, keepdim=True), lambda: x + x, lambda: x + 2.5,
    ]  # fmt: skip
    kinds = []
    for call in calls:
        torch_xla.sync()
        result = call()
        row = result.value.trace.tape.entries[result.value.slot]
        kinds.append(lowering._kind(row[0]))
    torch_xla.sync()
    assert len(set(kinds)) == len(kinds)
