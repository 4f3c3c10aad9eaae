"""LSTM and GRU cells are one operator each, beside two products, and equal eager torch's."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn

import torch_xla
from torch_xdist.core.devices import device as devices_here
from torch_xdist.core.trace.trace import rows_of
from torch_xla.experimental.scan import scan

CELLS = [nn.LSTMCell, nn.GRUCell]
Cell = type[nn.LSTMCell] | type[nn.GRUCell]


@pytest.fixture(autouse=True)
def nothing_pending() -> None:
    torch_xla.sync()


def pending() -> Counter[str]:
    entries = devices_here.trace_of(devices_here.default_index()).tape.entries
    return Counter(row[0].name for _, row in rows_of(entries))


def states_of(found: Any) -> list[torch.Tensor]:
    return [*found] if isinstance(found, tuple) else [found]


def one(cell: Cell, device: str, *shape: int, dtype: torch.dtype = torch.float32) -> Any:
    """The states after one call on an input of a shape."""
    torch.manual_seed(0)
    model = cell(3, 4).to(device, dtype)
    return [x.float().cpu() for x in states_of(model(torch.randn(shape).to(device, dtype)))]


def trained(cell: Cell, device: str, *, second: bool = False, **options: Any) -> list[torch.Tensor]:
    """The loss of four times, and all gradients; of the gradients' squares too."""
    torch.manual_seed(0)
    model = cell(3, 4, **options).double().to(device)
    x = torch.randn(2, 4, 3, dtype=torch.float64).to(device).requires_grad_()
    state, outs = None, []
    for t in range(4):
        state = model(x[:, t], state)
        outs.append(states_of(state)[0])
    loss = torch.stack(outs).sin().sum() + states_of(state)[-1].square().sum()
    wanted = [x, *model.parameters()]
    grads = torch.autograd.grad(loss, wanted, create_graph=second)
    found = [loss, *grads]
    if second:
        found += torch.autograd.grad(sum(g.square().sum() for g in grads), wanted)
    return [r.detach().cpu() for r in found]


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("options", [{}, {"bias": False}, {"second": True}], ids=str)
def test_a_loop_and_its_gradients_equal_eager(cell, options):
    torch.testing.assert_close(trained(cell, "xla", **options), trained(cell, "cpu", **options))


@pytest.mark.parametrize(
    ("cell", "name"),
    [(nn.LSTMCell, "aten._thnn_fused_lstm_cell"), (nn.GRUCell, "aten._thnn_fused_gru_cell")],
)
def test_all_gates_are_one_row_and_their_gradients_another(cell, name):
    model = cell(3, 4).to("xla")
    x = torch.randn(2, 3).to("xla")
    torch_xla.sync()
    states_of(model(x))[0].sum().backward()
    found = pending()
    backward = f"{name}_backward{'_impl' if 'lstm' in name else ''}.default"
    assert found[f"{name}.default"] == 1 and found[backward] == 1
    assert not {"aten.sigmoid.default", "aten.tanh.default", "aten.cat.default"} & found.keys()


@pytest.mark.parametrize("cell", CELLS)
def test_the_gradient_of_one_of_the_states_equals_eagers(cell):
    def found(device: str) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = cell(3, 4).double().to(device)
        last = states_of(model(torch.ones(2, 3, dtype=torch.float64).to(device)))[-1]
        grads = torch.autograd.grad(last.sum(), [*model.parameters()], allow_unused=True)
        return [g.cpu() for g in grads]

    torch.testing.assert_close(found("xla"), found("cpu"))


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("shape", [(3,), (2, 3), (0, 3)], ids=str)
def test_one_sample_several_and_none_equal_eagers(cell, shape):
    torch.testing.assert_close(one(cell, "xla", *shape), one(cell, "cpu", *shape))


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_halves_equal_eagers_to_their_last_digits(cell, dtype):
    found, expected = (one(cell, device, 2, 3, dtype=dtype) for device in ("xla", "cpu"))
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(found, expected, rtol=2 * eps, atol=2 * eps)


@pytest.mark.parametrize("cell", CELLS)
def test_autocast_goes_gate_by_gate_as_in_eager(cell):
    def found(device: str) -> list[torch.Tensor]:
        with torch.autocast(device, torch.bfloat16):
            return one(cell, device, 2, 3)

    torch.testing.assert_close(found("xla"), found("cpu"), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("cell", CELLS)
def test_wrong_shapes_and_dtypes_are_refused_in_torchs_words(cell):
    model = cell(3, 4).to("xla")
    with pytest.raises(RuntimeError, match="inconsistent input_size: got 5 expected 3"):
        model(torch.ones(2, 5).to("xla"))
    state = torch.ones(2, 5).to("xla")
    with pytest.raises(RuntimeError, match="inconsistent hidden_size: got 5, expected 4"):
        model(torch.ones(2, 3).to("xla"), (state, state) if cell is nn.LSTMCell else state)
    with pytest.raises(RuntimeError, match="must have the same dtype"):
        model(torch.ones(2, 3, dtype=torch.float64).to("xla"))


def test_a_cell_runs_inside_a_loop_on_the_device():
    def loop(model: nn.LSTMCell, states: Any, times: torch.Tensor) -> torch.Tensor:
        outs = []
        for x in times:
            states = model(x, states)
            outs.append(states[0])
        return torch.stack(outs)

    torch.manual_seed(0)
    model, x, h = nn.LSTMCell(3, 4), torch.randn(5, 2, 3), torch.zeros(2, 4)
    expected = loop(model, (h, h), x).detach()
    model = model.to("xla")

    def body(states: Any, x: torch.Tensor) -> Any:
        states = model(x, states)
        return states, states[0]

    _, outs = scan(body, (h.to("xla"), h.to("xla")), x.to("xla"))
    torch.testing.assert_close(outs.cpu(), expected)
