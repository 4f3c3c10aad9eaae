"""Loops over time that a model writes out, as the benchmark has them."""

import pytest
import torch
from scripts_as_modules import loaded

import torch_xla

bench = loaded("bench_loops")


@pytest.mark.parametrize("name", bench.LOOPS)
def test_a_loops_values_and_gradients_equal_eagers(name, monkeypatch):
    monkeypatch.setattr(bench.LOOPS[name], "times", 12)
    torch.manual_seed(0)
    loop = bench.LOOPS[name]().double()
    x = torch.randn(2, 12, bench.WIDTH, dtype=torch.float64)

    def found(device: str) -> list[torch.Tensor]:
        on_device = loop.to(device)
        out = on_device(x.to(device))
        gradients = torch.autograd.grad(out.square().sum(), list(on_device.parameters()))
        return [out.cpu(), *[gradient.cpu() for gradient in gradients]]

    expected = found("cpu")
    torch_xla.sync()
    for got, want in zip(found("xla"), expected, strict=True):
        torch.testing.assert_close(got, want)


def test_runs_are_summed_up_by_their_first_three_steps_and_the_median_of_the_others():
    runs = [[3.0, 0.5, 0.5, 0.01, 0.03, 0.02], [5.0, 0.5, 0.5, 0.04, 0.04, 0.04]]
    assert bench.summary(runs) == {
        "first_three_s": 5.0,
        "least_s": 4.0,
        "most_s": 6.0,
        "step_ms": 30.0,
    }


def test_a_loop_that_is_not_there_is_named(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["bench_loops", "--only", "rwkv,gru"])
    with pytest.raises(SystemExit):
        bench.main()
    assert "no loops: gru; there are rwkv, mamba" in capsys.readouterr().err
