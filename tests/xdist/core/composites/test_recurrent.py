"""Recurrent layers are one row, forward and backward, and equal eager torch's."""

from typing import Any

import pytest
import torch
from torch import nn

import torch_xla


@pytest.fixture(autouse=True)
def nothing_pending() -> None:
    torch_xla.sync()


def results(
    layer: type[nn.RNNBase], device: str, *, second: bool = False, **options: Any
) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = layer(3, 4, **options).double().to(device)
    x = torch.randn(5, 2, 3, dtype=torch.float64).to(device).requires_grad_()
    out, state = model(x)
    states = state if isinstance(state, tuple) else (state,)
    loss = out.sin().sum() + sum(s.square().sum() for s in states)
    wanted = [x, *model.parameters()]
    grads = torch.autograd.grad(loss, wanted, create_graph=second)
    found = [out, *states, *grads]
    if second:
        found += torch.autograd.grad(sum(g.square().sum() for g in grads), wanted)
    return [r.detach().cpu() for r in found]


@pytest.mark.parametrize(
    ("layer", "options"),
    [
        (nn.LSTM, {}),
        (nn.LSTM, {"num_layers": 2, "bidirectional": True, "batch_first": True}),
        (nn.GRU, {"num_layers": 2, "bidirectional": True}),
        (nn.RNN, {"nonlinearity": "relu", "bias": False}),
        (nn.RNN, {"bidirectional": True}),
    ],
    ids=["lstm", "deep-lstm", "gru", "relu", "tanh"],
)
def test_a_layer_and_its_gradients_equal_eager(
    layer: type[nn.RNNBase], options: dict[str, Any]
) -> None:
    expected = results(layer, "cpu", **options)
    torch.testing.assert_close(results(layer, "xla", **options), expected)


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU])
def test_the_second_derivative_equals_eager(layer: type[nn.RNNBase]) -> None:
    expected = results(layer, "cpu", second=True)
    torch.testing.assert_close(results(layer, "xla", second=True), expected)


def test_any_number_of_steps_is_one_row_and_one_for_the_gradient() -> None:
    model = nn.LSTM(3, 4).to("xla")
    x = torch.randn(50, 2, 3).to("xla")
    model(x)[0].sum().backward()
    names = [row[0].name for row in x.value.trace.rows]
    assert names.count("lstm") == names.count("lstm_backward") == 1
    assert not {"aten.sigmoid.default", "aten.mm.default"} & set(names)


def test_without_gradients_nothing_is_saved() -> None:
    model = nn.GRU(3, 4).to("xla")
    with torch.no_grad():
        out, _ = model(torch.randn(5, 2, 3).to("xla"))
    row = next(r for r in out.value.trace.rows if r[0].name == "gru")
    assert len(row[0].types) == 2


def test_dropout_between_layers_goes_torchs_way() -> None:
    model = nn.LSTM(3, 4, num_layers=2, dropout=0.5).to("xla")
    out, _ = model(torch.randn(3, 2, 3).to("xla"))
    assert "lstm" not in [row[0].name for row in out.value.trace.rows]
    assert out.isfinite().all().item()
