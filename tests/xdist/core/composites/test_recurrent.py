"""Recurrent layers are one row, forward and backward, and equal eager torch's."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
from torch import nn

import torch_xla
from torch_xdist.ops.rnn import Layers, run_layers


@pytest.fixture(autouse=True)
def nothing_pending() -> None:
    torch_xla.sync()


def results(
    layer: type[nn.RNNBase], device: str, *, hidden: int = 4, second: bool = False, **options: Any
) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = layer(3, hidden, **options).double().to(device)
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
        (nn.LSTM, {"hidden": 256, "bidirectional": True}),
        (nn.LSTM, {"hidden": 257}),
        (nn.GRU, {"num_layers": 2, "bidirectional": True}),
        (nn.GRU, {"bias": False}),
        (nn.RNN, {"nonlinearity": "relu", "bias": False}),
        (nn.RNN, {"bidirectional": True}),
    ],
    ids=[
        "lstm",
        "deep-lstm",
        "lstm-in-halves",
        "odd-lstm",
        "gru",
        "gru-without-bias",
        "relu",
        "tanh",
    ],
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


@pytest.mark.on_cpu
@pytest.mark.parametrize(
    ("layer", "hidden", "count"),
    [(nn.LSTM, 256, 2), (nn.LSTM, 128, 1), (nn.LSTM, 257, 1), (nn.GRU, 512, 1)],
)
def test_a_large_weight_of_even_numbers_of_gates_and_features_is_taken_in_halves(
    layer: type[nn.RNNBase], hidden: int, count: int
) -> None:
    kind = layer.__name__.lower()
    layers = Layers(kind, has_biases=False, num_layers=1, bidirectional=False, batch_first=False)
    states = [jnp.zeros((1, 2, hidden))] * layers.states
    gates = {"lstm": 4, "gru": 3}[kind] * hidden
    arrays = [jnp.zeros((5, 2, 3)), *states, jnp.zeros((gates, 3)), jnp.zeros((gates, hidden))]
    text = str(jax.make_jaxpr(lambda *given: run_layers(layers, *given))(*arrays))
    of_input = 1
    assert text.count("dot_general") == of_input + count


def test_without_gradients_nothing_is_saved() -> None:
    model = nn.GRU(3, 4).to("xla")
    with torch.no_grad():
        out, _ = model(torch.randn(5, 2, 3).to("xla"))
    row = next(r for r in out.value.trace.rows if r[0].name == "gru")
    assert len(row[0].types) == 2


@pytest.mark.parametrize(("training", "rows"), [(True, 3), (False, 1)])
def test_with_dropout_between_layers_each_is_a_row(training: bool, rows: int) -> None:
    model = nn.LSTM(3, 4, num_layers=3, dropout=0.5).to("xla").train(training)
    out, _ = model(torch.randn(50, 2, 3).to("xla"))
    out.sum().backward()
    names = [row[0].name for row in out.value.trace.rows]
    assert names.count("lstm") == names.count("lstm_backward") == rows


@pytest.mark.parametrize(
    ("layer", "options"),
    [
        (nn.LSTM, {"bidirectional": True, "batch_first": True}),
        (nn.GRU, {"bias": False}),
        (nn.RNN, {"bidirectional": True}),
    ],
    ids=["lstm", "gru", "tanh"],
)
def test_a_layer_that_gets_nothing_but_what_was_dropped_equals_eager(
    layer: type[nn.RNNBase], options: dict[str, Any]
) -> None:
    expected = results(layer, "cpu", num_layers=2, dropout=1.0, **options)
    torch.testing.assert_close(
        results(layer, "xla", num_layers=2, dropout=1.0, **options), expected
    )


def test_half_of_what_a_layer_gives_to_the_next_is_dropped_and_the_rest_doubled() -> None:
    model = nn.RNN(8, 64, num_layers=2, dropout=0.5, nonlinearity="relu", bias=False)
    with torch.no_grad():
        model.weight_ih_l1.copy_(torch.eye(64))
        model.weight_hh_l1.zero_()
    x = torch.rand(20, 16, 8)
    first = nn.RNN(8, 64, nonlinearity="relu", bias=False)
    first.load_state_dict({k: v for k, v in model.state_dict().items() if k.endswith("l0")})
    whole = first(x)[0].detach()
    dropped = model.to("xla")(x.to("xla"))[0].detach().cpu()
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], 2 * whole[kept])
    assert kept.sum().item() / (whole != 0).sum().item() == pytest.approx(0.5, abs=0.03)
