"""Recurrent layers over packed sequences are one row, forward and backward, and equal eager's."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence

import torch_xla

LENGTHS = (3, 6, 1, 6)


@pytest.fixture(autouse=True)
def nothing_pending() -> None:
    torch_xla.sync()


def results(
    layer: type[nn.RNNBase],
    device: str,
    *,
    second: bool = False,
    given: bool = True,
    **options: Any,
) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = layer(3, 4, **options).double().to(device)
    x = torch.randn(6, 4, 3, dtype=torch.float64).to(device).requires_grad_()
    packed = pack_padded_sequence(x, torch.tensor(LENGTHS), enforce_sorted=False)
    states = len(model.all_weights) if given else 0
    first = torch.randn(2, states, 4, 4, dtype=torch.float64).to(device)
    hx = (first[0], first[1]) if layer is nn.LSTM else first[0]
    out, state = model(packed, hx if given else None)
    ends = state if isinstance(state, tuple) else (state,)
    loss = out.data.sin().sum() + sum(s.square().sum() for s in ends)
    wanted = [x, *model.parameters()]
    grads = torch.autograd.grad(loss, wanted, create_graph=second)
    found = [out.data, out.batch_sizes, *ends, *grads]
    if second:
        found += torch.autograd.grad(sum(g.square().sum() for g in grads), wanted)
    return [r.detach().cpu() for r in found]


@pytest.mark.parametrize(
    ("layer", "options"),
    [
        (nn.LSTM, {}),
        (nn.LSTM, {"num_layers": 2, "bidirectional": True}),
        (nn.LSTM, {"num_layers": 2, "bidirectional": True, "given": False}),
        (nn.LSTM, {"num_layers": 2, "dropout": 1.0}),
        (nn.GRU, {"num_layers": 2, "bidirectional": True}),
        (nn.GRU, {"bias": False}),
        (nn.RNN, {"nonlinearity": "relu", "bidirectional": True}),
        (nn.RNN, {"num_layers": 2, "bias": False}),
        (nn.LSTM, {"second": True}),
        (nn.GRU, {"second": True}),
    ],
    ids=[
        "lstm",
        "deep-lstm",
        "lstm-from-zero",
        "dropped",
        "gru",
        "gru-without-bias",
        "relu",
        "tanh",
        "twice",
        "gru-twice",
    ],
)
def test_a_layer_and_its_gradients_of_both_orders_equal_eager(
    layer: type[nn.RNNBase], options: dict[str, Any]
) -> None:
    expected = results(layer, "cpu", **options)
    torch.testing.assert_close(results(layer, "xla", **options), expected)


def test_sequences_of_any_lengths_are_one_row_and_one_for_the_gradient() -> None:
    model = nn.LSTM(3, 4, num_layers=2, bidirectional=True).to("xla")
    packed = pack_sequence([torch.randn(n, 3).to("xla") for n in (40, 7, 3)])
    out, _ = model(packed)
    out.data.sum().backward()
    names = [row[0].name for row in out.data.value.trace.rows]
    assert names.count("lstm") == names.count("lstm_backward") == 1
    assert not {"aten.sigmoid.default", "aten.mm.default"} & set(names)


def test_with_dropout_between_layers_each_is_a_row() -> None:
    model = nn.GRU(3, 4, num_layers=3, dropout=0.5).to("xla")
    out, _ = model(pack_sequence([torch.randn(n, 3).to("xla") for n in (9, 2)]))
    out.data.sum().backward()
    names = [row[0].name for row in out.data.value.trace.rows]
    assert names.count("gru") == names.count("gru_backward") == 3


def test_without_gradients_nothing_is_saved() -> None:
    model = nn.GRU(3, 4).to("xla")
    with torch.no_grad():
        out, _ = model(pack_sequence([torch.randn(n, 3).to("xla") for n in (9, 2)]))
    row = next(r for r in out.data.value.trace.rows if r[0].name == "gru")
    assert len(row[0].types) == 2


def test_a_sequence_of_nan_leaves_the_others_as_they_are() -> None:
    model = nn.LSTM(3, 4).to("xla")
    first, second = torch.randn(5, 3), torch.randn(2, 3)
    expected = model(pack_sequence([first.to("xla"), second.to("xla")]))[0].data.cpu()
    found = model(pack_sequence([first.to("xla"), second.to("xla") * torch.nan]))[0].data.cpu()
    of_first = torch.tensor([0, 2, 4, 5, 6])
    torch.testing.assert_close(found[of_first], expected[of_first])
    assert found[torch.tensor([1, 3])].isnan().all()


def test_projections_go_torchs_way() -> None:
    def of(device: str) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.LSTM(3, 4, proj_size=2).to(device)
        packed = pack_sequence([torch.ones(n, 3).to(device) for n in (3, 2)])
        return [model(packed)[0].data.detach().cpu()]

    torch.testing.assert_close(of("xla"), of("cpu"))


def test_sizes_that_do_not_count_all_rows_get_torchs_error() -> None:
    def refused(device: str) -> str:
        rows = torch.ones(5, 3).to(device)
        with pytest.raises(RuntimeError) as raised:
            nn.RNN(3, 4).to(device)(PackedSequence(rows, torch.tensor([2, 2])))
        return str(raised.value)

    assert "split_with_sizes" in refused("xla")
