"""`torch.compile` without a backend takes openxla for device tensors, and inductor elsewhere."""

import pytest
import torch
from torch import nn

import torch_xla
from torch_xdist import metrics
from torch_xdist.dynamo import default_backend

TOLD = "test_default_backend.py:.* inductor, its default backend, makes no code for xla"


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    default_backend.tell_once.cache_clear()


def trained(device, compiled):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    run, x, losses = compiled(model), torch.ones(2, 3).to(device), []
    for _ in range(4):
        optimizer.zero_grad()
        loss = run(x).square().sum()
        loss.backward()
        optimizer.step()
        torch_xla.sync()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(
    "compiled",
    [
        pytest.param(torch.compile, id="as it is"),
        pytest.param(lambda m: torch.compile(m, mode="reduce-overhead"), id="with a mode"),
        pytest.param(lambda m: torch.compile(m, backend="inductor"), id="inductor by name"),
    ],
)
def test_a_training_runs_by_openxla_and_is_told_once(compiled):
    with pytest.warns(UserWarning, match=TOLD) as warned:
        found = trained("xla", compiled)
    assert found == pytest.approx(trained("cpu", lambda model: model), rel=1e-4)
    assert len([w for w in warned if "inductor" in str(w.message)]) == 1
    assert metrics.metric_data("RunCachedGraphInputData")[0] > 0


def test_a_module_that_compiles_itself_and_a_function_without_operands_run_too():
    module = nn.Linear(3, 2).to("xla")
    module.compile()
    made = torch.compile(lambda: torch.ones(3, device="xla") * 2)
    with pytest.warns(UserWarning, match=TOLD):
        assert module(torch.ones(1, 3, device="xla")).shape == (1, 2)
        assert made().tolist() == [2, 2, 2]


def test_graphs_of_the_cpu_stay_inductor_s(monkeypatch):
    asked = []

    def compile_fx(graph, inputs, **more):
        asked.append(graph)
        return graph.forward

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", compile_fx)
    double = torch.compile(lambda x: x * 2)
    assert double(torch.ones(2)).tolist() == [2, 2] and len(asked) == 1
