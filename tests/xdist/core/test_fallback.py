"""Operators that run on the CPU, and those that run nowhere."""

import pytest
import torch

import torch_xdist.core.backend  # noqa: F401
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
