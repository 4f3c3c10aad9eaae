"""Operators that run on the CPU, and those that run nowhere."""

import pytest
import torch

import torch_xdist.core.torch_side.registration  # noqa: F401
from torch_xdist import metrics
from torch_xdist.errors import NoLoweringError


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
