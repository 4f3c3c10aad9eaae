"""How exact matrix products are: torch's setting and torch_xla's are one."""

import jax
import pytest
import torch

import torch_xdist.core.torch_side.registration  # noqa: F401
from torch_xdist.core.devices import precision


@pytest.fixture(autouse=True)
def restored():
    yield
    torch.set_float32_matmul_precision("highest")
    precision.choose("default")


@pytest.mark.parametrize(
    ("of_torch", "ours", "of_jax"),
    [("highest", "highest", "highest"), ("high", "high", "high"), ("medium", "default", None)],
)
def test_the_setting_of_torch_reaches_the_programs(of_torch, ours, of_jax):
    torch.set_float32_matmul_precision(of_torch)
    assert torch.get_float32_matmul_precision() == of_torch
    assert precision.chosen() == ours
    assert jax.config.jax_default_matmul_precision == of_jax
    x = torch.rand(3, 3)
    torch.testing.assert_close((x.to("xla") @ x.to("xla")).cpu(), x @ x)


def test_a_word_torch_does_not_know_changes_nothing():
    precision.choose("high")
    with pytest.warns(UserWarning, match="sloppy"):
        torch.set_float32_matmul_precision("sloppy")
    assert precision.chosen() == "high"
