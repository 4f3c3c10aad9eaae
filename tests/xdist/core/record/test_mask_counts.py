"""`x[mask] = values`: as many values as the mask selects, or torch's error."""

import pytest
import torch

import torch_xdist.core.torch_side.registration  # noqa: F401
from torch_xdist import metrics, platforms, settings
from torch_xdist.core.devices import device, host_rows, steps
from torch_xdist.core.run import cuts


@pytest.fixture
def on_the_device(monkeypatch):
    monkeypatch.setenv("XLA_EXPERIMENTAL", "nonzero:masked_select")
    settings.reread()
    yield
    monkeypatch.undo()
    settings.reread()


def written(device, index, values):
    x = torch.zeros(2, 4, 3, device=device)
    mask = torch.tensor([True, False, True, False], device=device)
    x[(*index, mask)] = values.to(device)
    return x.cpu()


@pytest.mark.parametrize(
    "values",
    [torch.tensor(2.0), torch.ones(3), torch.rand(1, 3), torch.rand(2, 3), torch.rand(2, 2, 3)],
    ids=lambda v: str(list(v.shape)),
)
def test_values_that_fit_the_mask_are_written(values):
    index = (slice(None),)
    torch.testing.assert_close(written("xla", index, values), written("cpu", index, values))


@pytest.mark.parametrize("shape", [(3, 3), (0, 3), (2, 4, 3)])
def test_another_number_of_values_raises_torchs_error(shape):
    with pytest.raises(RuntimeError, match=r"shape mismatch: value tensor of shape") as expected:
        written("cpu", (slice(None),), torch.ones(shape))
    with pytest.raises(RuntimeError, match=r"shape mismatch: value tensor of shape") as got:
        written("xla", (slice(None),), torch.ones(shape))
    assert str(got.value) == str(expected.value)


def test_values_that_fit_any_mask_are_written_without_a_read():
    before = cuts.REASONS.copy()
    x = torch.zeros(4, device="xla")
    x[x > 1] = torch.ones(1, device="xla")
    assert before == cuts.REASONS
    assert x.tolist() == [0] * 4


X = torch.arange(24.0).view(2, 4, 3)
ROWS = torch.tensor([True, False, True, True])
READS = {
    "of all dims": lambda x: x[x > 7],
    "of one": lambda x: x[:, ROWS.to(x.device)],
    "of the last ones": lambda x: x[:, (x > 13)[1]],
    "beside numbers": lambda x: x[torch.tensor([0, 1, 1], device=x.device), ROWS.to(x.device)],
    "apart": lambda x: x[[True, False], :, ROWS[:3].to(x.device)],
    "that selects nothing": lambda x: x[x > 99],
    "of the CPU": lambda x: x[:, ROWS],
    "in bytes": lambda x: x[:, ROWS.to(x.device).byte()],
    "selected": lambda x: x.masked_select(ROWS[:, None].to(x.device)),
    "places": lambda x: (x > 20).nonzero(),
    "numbers": lambda x: torch.nonzero(x[0, 0], as_tuple=True)[0],
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
def test_a_mask_reads_one_number_and_the_rest_are_rows(read, on_the_device):
    before = sum(metrics.counter_value(name) or 0 for name in metrics.executed_fallback_ops())
    x = X.to("xla")
    found, expected = read(x), read(X)
    assert found.shape == expected.shape and found.dtype == expected.dtype
    torch.testing.assert_close(found.cpu(), expected)
    after = sum(metrics.counter_value(name) or 0 for name in metrics.executed_fallback_ops())
    assert before == after
    assert found.value.buffer is not None or found.value.parent is not None


@pytest.mark.parametrize("is_cpu", [True, False], ids=["CPU", "another device"])
@pytest.mark.parametrize(
    "read",
    [
        lambda x, few: x[x < few],
        lambda x, few: x.masked_select(x < few),
        lambda x, few: (x < few).view(6, 4).nonzero(),
        lambda x, few: x.view(6, 4).t()[(x < few)[::6]],
    ],
    ids=["x[mask]", "masked_select", "nonzero", "transposed"],
)
def test_masks_of_many_counts_share_few_programs(read, is_cpu, on_the_device, monkeypatch):
    numbers = torch.arange(24.0)
    x = numbers.to("xla") * 1.0  # Of which the host knows nothing.
    monkeypatch.setattr(device.device_at(0), "choices", platforms.of("cpu" if is_cpu else "tpu"))
    steps.sync()
    before = metrics.counter_value("UncachedCompile") or 0
    for few in range(3, 24):
        found, expected = read(x, few + 0.5), read(numbers, few + 0.5)
        assert found.shape == expected.shape and found.dtype == expected.dtype
        assert found.stride() == expected.stride()
        torch.testing.assert_close(found.cpu(), expected)
        del found
    compiled = metrics.counter_value("UncachedCompile") - before
    # One that counts; for each power of two one, and one where the mask takes all its places; and
    # what cuts to the count, where that is a row.
    assert compiled <= (7 if is_cpu else 7 + 21)


def test_what_a_mask_reads_has_a_gradient(on_the_device):
    x = X.to("xla").requires_grad_()
    (x[x > 7].square().sum() + x.masked_select(x < 3).sum()).backward()
    y = X.clone().requires_grad_()
    (y[y > 7].square().sum() + y.masked_select(y < 3).sum()).backward()
    torch.testing.assert_close(x.grad.cpu(), y.grad)


@pytest.mark.on_cpu
def test_only_where_the_device_is_no_cpu_or_it_is_asked_for(monkeypatch):
    x = torch.tensor([1.0, 0.0], device="xla") * 1.0
    before = metrics.counter_value("aten::nonzero") or 0
    assert x.nonzero().tolist() == [[0]]
    assert metrics.counter_value("aten::nonzero") == before + 1
    monkeypatch.setattr(device.device_at(0), "choices", platforms.of("tpu"))
    assert x.nonzero().tolist() == [[0]]
    assert metrics.counter_value("aten::nonzero") == before + 1


def test_a_mask_of_another_shape_is_torchs_error(on_the_device):
    with pytest.raises(IndexError, match=r"shape of the mask \[4\] at index 0 does not match"):
        X.to("xla")[ROWS.to("xla")]
    with pytest.raises(RuntimeError, match="masked_select: expected BoolTensor for mask"):
        X.to("xla").masked_select(ROWS[:3].to("xla").float())
    with pytest.raises(RuntimeError, match=r"size of tensor a \(4\) must match"):
        X.to("xla").masked_select(ROWS.to("xla"))


def cut_and_asked():
    """Cuts, and calls that the CPU served."""
    served = sum(metrics.counter_value(name) or 0 for name in metrics.executed_fallback_ops())
    return sum(cuts.REASONS.values()), served


KNOWN_READS = {name: read for name, read in READS.items() if name != "numbers"} | {
    "with a gradient": lambda x: torch.autograd.grad(
        (w := x.clone().requires_grad_())[:, ROWS.to(x.device)].square().sum(), w
    )[0],
    "of two kinds": lambda x: x[:, ROWS.to(x.device), torch.tensor([0, 2, 1], device=x.device)],
    "made of numbers": lambda x: x[:, torch.arange(4, device=x.device) % 2 == 0],
    "transposed": lambda x: x.transpose(1, 2)[..., ROWS.to(x.device)],
    "written": lambda x: x.index_put((ROWS.to(x.device)[None].expand(2, 4),), x[0, :1]),
}


@pytest.mark.parametrize("read", KNOWN_READS.values(), ids=KNOWN_READS)
@pytest.mark.parametrize("is_cpu", [True, False], ids=["CPU", "another device"])
@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
def test_what_the_host_knows_of_a_mask_cuts_nothing(read, is_cpu, monkeypatch):
    host_rows._answers.clear()
    monkeypatch.setattr(device.device_at(0), "choices", platforms.of("cpu" if is_cpu else "tpu"))
    x, expected = X.to("xla"), read(X)
    steps.sync()
    before = cut_and_asked()
    found = read(x)
    assert cut_and_asked() == before
    assert found.shape == expected.shape and found.dtype == expected.dtype
    assert found.stride() == expected.stride()
    torch.testing.assert_close(found.cpu(), expected)


def test_a_mask_of_which_the_host_knows_nothing_is_for_the_cpu():
    x = X.to("xla") * 1.0
    steps.sync()
    before = cut_and_asked()
    assert x[x > 7].tolist() == X[X > 7].tolist()
    assert cut_and_asked() != before


def test_a_line_whose_masks_select_many_counts_asks_the_cpu_from_then_on():
    host_rows._answers.clear()
    x = X[0, :, 0].to("xla") * 1.0
    served = []
    for count in (1, 2, 3, 1, 4, 0, 2):
        before = cut_and_asked()[1]
        assert len(x[(torch.arange(4) < count).to("xla")]) == count
        served.append(cut_and_asked()[1] - before)
        steps.sync()
    assert served == [0, 0, 0, 0, 0, 1, 1]


def test_a_line_may_have_masks_of_many_counts_in_each_step():
    host_rows._answers.clear()
    x = X[0, :, 0].to("xla") * 1.0
    steps.sync()
    before = cut_and_asked()[1]
    for _ in range(3):
        for count in (1, 2, 3, 4, 0, 2):
            assert len(x[(torch.arange(4) < count).to("xla")]) == count
        steps.sync()
    assert cut_and_asked()[1] == before


def test_a_loop_that_ends_no_step_is_asked_in_the_end():
    host_rows._answers.clear()
    x = X[0, :, 0].to("xla") * 1.0
    before = cut_and_asked()[1]
    for times in range(host_rows._MOST_TIMES + 1):
        assert cut_and_asked()[1] == before, times
        assert len(x[ROWS.to("xla")]) == 3
    assert cut_and_asked()[1] == before + 1


def test_a_graph_whose_mask_chooses_the_nodes_to_train_on_is_one_program():
    torch.manual_seed(0)
    x, y = torch.rand(50, 8).to("xla"), torch.randint(3, (50,)).to("xla")
    edges = torch.randint(50, (2, 90)).to("xla")
    training = (torch.arange(50) < 20).to("xla")
    layer = torch.nn.Linear(8, 3).to("xla")
    optimizer = torch.optim.Adam(layer.parameters(), 0.1)
    steps.sync()
    before = metrics.counter_value("UncachedCompile") or 0
    for _ in range(3):
        optimizer.zero_grad()
        away = edges[:, edges[0] != edges[1]]
        out = layer(x).index_add(0, away[1], layer(x)[away[0]])
        torch.nn.functional.cross_entropy(out[training], y[training]).backward()
        optimizer.step()
        steps.sync()
        assert int(training.sum()) == 20
    assert metrics.counter_value("UncachedCompile") == before + 1
