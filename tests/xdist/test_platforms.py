"""The table of platforms."""

import pytest
import torch

import torch_xdist.core.torch_side.registration  # noqa: F401
from torch_xdist import metrics, platforms
from torch_xdist.core.devices import aim, device
from torch_xdist.kernels import rows


@pytest.mark.parametrize(
    ("name", "found"), [("GPU", "cuda"), ("rocm", "cuda"), ("TPU", "tpu"), ("CPU", "cpu")]
)
def test_a_platform_has_several_names(name, found):
    assert platforms.of(name) is platforms.CHOICES[found]


def test_a_plugin_has_the_choices_of_none():
    assert platforms.of("NEURON") == platforms.Choices("neuron")


class Tpu:
    """Of a device that is not here, all that choices look at."""

    platform = "tpu"


def test_choices_follow_the_device_that_programs_are_for():
    assert not rows.has_pallas() and device.choices().is_host
    with aim.at([Tpu()]):
        assert rows.has_pallas() and not device.choices().is_host
        assert aim.devices()[0].platform == "tpu"
    assert not rows.has_pallas() and device.choices().is_host
    assert aim.devices()[0].platform == "cpu"


def test_an_operator_without_a_form_falls_back_by_name_on_that_platform_alone():
    x = torch.eye(3).to("xla")
    before = metrics.counter_value("aten::linalg_eigvals") or 0
    torch.linalg.eigvals(x)
    assert (metrics.counter_value("aten::linalg_eigvals") or 0) == before
    with aim.at([Tpu()]):
        assert torch.linalg.eigvals(x).real.tolist() == [1, 1, 1]
        after = [n for n in metrics.missing_lowerings() if "eig" in n]
        assert after
    torch.linalg.eigvals(x)
