"""Operators that run on the CPU, and those that run nowhere."""

import pytest
import torch

import torch_xdist.core.torch_side.registration  # noqa: F401
from torch_xdist import metrics, settings
from torch_xdist.core.devices import host_rows, steps
from torch_xdist.core.run import cuts
from torch_xdist.errors import FallbackError, NoLoweringError


def test_an_operator_that_nothing_can_run_is_refused_with_similar_names():
    library = torch.library.Library("xdist_tests", "DEF")
    library.define("soft_max(Tensor self) -> Tensor")
    words = (
        r"xdist_tests\.soft_max\.default: it has no lowering, and the CPU cannot run it either"
        r" (.|\n)*; operators with similar names that run: .*aten\."
    )
    with pytest.raises(NoLoweringError, match=words):
        torch.ops.xdist_tests.soft_max(torch.ones(2, device="xla"))


def test_a_users_operator_made_of_others_runs_on_the_device_and_one_that_reads_on_the_cpu():
    @torch.library.custom_op("xdist_tests::first_row_tripled", mutates_args=())
    def tripled(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        y[:1].mul_(3)
        return y

    @torch.library.custom_op("xdist_tests::tripled_if_positive", mutates_args=())
    def if_positive(x: torch.Tensor) -> torch.Tensor:
        return x * 3 if x.sum().item() > 0 else x.clone()

    for operator in (tripled, if_positive):
        operator.register_fake(torch.empty_like)
        x = torch.arange(6.0).reshape(2, 3)
        torch.testing.assert_close(operator(x.to("xla")).cpu(), operator(x))
    assert metrics.counter_value("aten::xdist_tests::first_row_tripled") is None
    assert metrics.counter_value("aten::xdist_tests::tripled_if_positive") == 1


EDGES = torch.tensor([[3, 0, 2, 0, 3, 1], [1, 0, 2, 4, 1, 1]])
OF_EDGES = {
    "unique": lambda e: torch.unique(e[0], return_inverse=True),
    "unique pairs": lambda e: torch.unique(e, dim=1),
    "runs": lambda e: torch.unique_consecutive(e[1]),
    "without loops": lambda e: e[:, e[0] != e[1]],
    "the first of each": lambda e: (s := e[0].sort().values)[1:][s[1:] > s[:-1]],
    "of few nodes": lambda e: e[:, torch.zeros_like(e[0]).index_fill_(0, e[1], 1)[e[0]] > 0],
    "of marked nodes": lambda e: e[:, _marked(e)[e[0]]],
    "how often": lambda e: torch.bincount(e[0], minlength=5),
    "repeated": lambda e: torch.repeat_interleave(e[0], e[1]),
    "places": lambda e: (e > 1).nonzero(),
}


def _marked(edges):
    marks = torch.zeros(5, dtype=torch.bool, device=edges.device)
    marks[edges[1, :3]] = True
    return marks


@pytest.mark.parametrize("read", OF_EDGES.values(), ids=OF_EDGES)
def test_where_the_host_knows_all_operands_nothing_is_cut(read, monkeypatch):
    monkeypatch.setenv("XDIST_FALLBACK", "error")
    settings.reread()
    try:
        host_rows._answers.clear()
        edges = EDGES.to("xla")
        steps.sync()
        before = cuts.REASONS.copy()
        found, expected = read(edges), read(EDGES)
        assert before == cuts.REASONS
        torch.testing.assert_close(
            [t.cpu() for t in (found if isinstance(found, tuple) else [found])],
            [*(expected if isinstance(expected, tuple) else [expected])],
        )
    finally:
        monkeypatch.undo()
        settings.reread()


def test_floating_point_numbers_are_not_taken_for_known_as_parameters_are_so_once(monkeypatch):
    monkeypatch.setenv("XDIST_FALLBACK", "error")
    settings.reread()
    try:
        with pytest.raises(FallbackError, match=r"aten._unique2.default has no lowering and would"):
            torch.unique(torch.tensor([1.0, 1.0]).to("xla"))
    finally:
        monkeypatch.undo()
        settings.reread()


def test_results_lie_on_the_device_as_on_the_cpu():
    x = torch.tensor([[0.0, 1.0], [2.0, 3.0]])
    assert x.to("xla").sin().nonzero().stride() == x.sin().nonzero().stride() == (1, 3)
