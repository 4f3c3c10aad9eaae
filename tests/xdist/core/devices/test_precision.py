"""How exact matrix products are: torch's setting and torch_xla's are one."""

import re

import jax
import pytest
import torch
import torch.nn.functional as F

import torch_xdist.core.torch_side.registration  # noqa: F401
from torch_xdist import platforms
from torch_xdist.core.devices import aim, precision
from torch_xdist.core.trace import global_state
from torch_xdist.torch_xla_compat.graphs import stablehlo_of


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


class Gpu:
    """Of a device that is not here, what choices look at."""

    platform = "gpu"


@pytest.fixture
def on_gpu(restored):
    before = torch.backends.cudnn.allow_tf32
    # torch's own testing tools, which other tests import, forbid it otherwise.
    with torch.backends.__allow_nonbracketed_mutation(), aim.at([Gpu()]):
        torch.set_float32_matmul_precision("highest")
        yield
        torch.backends.cudnn.allow_tf32 = before
    global_state.follow_torch(platforms.of("cpu"))


def products_and_convolutions():
    """The precisions that a program has: of a product, and of a convolution."""
    x, image, kernel = (torch.rand(s).to("xla") for s in ((4, 4), (1, 3, 8, 8), (3, 3, 3, 3)))
    text = stablehlo_of([x @ x, F.conv2d(image, kernel)])
    (product,) = re.findall(r"dot_general.*precision = \[(\w+)", text) or ["DEFAULT"]
    (convolution,) = re.findall(r"convolution\(.*precision_config = \[#\S+ (\w+)", text)
    return product, convolution


def test_a_gpu_rounds_convolutions_alone_unless_told_otherwise(on_gpu):
    assert products_and_convolutions() == ("HIGHEST", "DEFAULT")


@pytest.mark.on_cpu  # where the device is a GPU, its own programs say the same
def test_what_its_flags_say_of_products_ends_with_its_programs():
    precision.choose("default")
    global_state.say_products(False)
    with aim.at([Gpu()]):
        assert products_and_convolutions()[0] == "HIGHEST"
        assert jax.config.jax_default_matmul_precision == "highest"
    assert jax.config.jax_default_matmul_precision is None
    # Not what the user has said meanwhile.
    with aim.at([Gpu()]):
        precision.choose("high")
        global_state.say_products(True)
    assert jax.config.jax_default_matmul_precision == "high"
    global_state.say_products(False)


def test_a_gpu_does_as_torchs_flags_of_tf32_say(on_gpu):
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = False
    assert products_and_convolutions() == ("HIGH", "HIGHEST")
    torch.backends.cuda.matmul.allow_tf32 = False
    assert products_and_convolutions() == ("HIGHEST", "HIGHEST")


def test_the_newer_flags_of_torch_are_obeyed_too(on_gpu):
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    torch.backends.cudnn.conv.fp32_precision = "ieee"
    try:
        assert products_and_convolutions() == ("HIGH", "HIGHEST")
    finally:
        torch.backends.cuda.matmul.fp32_precision = "ieee"
        torch.backends.cudnn.conv.fp32_precision = "tf32"


def test_the_word_of_torch_xlas_own_setting_outweighs_torchs_flags(on_gpu):
    precision.choose("default")
    assert products_and_convolutions()[0] == "DEFAULT"


def test_programs_of_other_precisions_are_other_programs(on_gpu):
    exact = global_state.of_program(platforms.of("cuda"))
    torch.backends.cuda.matmul.allow_tf32 = True
    rounded = global_state.of_program(platforms.of("cuda"))
    torch.backends.cudnn.allow_tf32 = False
    assert len({exact, rounded, global_state.of_program(platforms.of("cuda"))}) == 3
    assert global_state.of_program(platforms.of("cpu"))[1] == (None, ())
