"""Pooling on the device equals eager torch's, with its gradients."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest
import torch
import torch.nn.functional as F
from devices_agree import both

from torch_xdist import platforms
from torch_xdist.ops import forms
from torch_xdist.ops.maxima import is_quicker_by_dim, max_with_indices, spread_by_indices
from torch_xdist.ops.windows import Windows


def image(*shape: int) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(*shape, dtype=torch.float64)


WINDOWS = pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 2},
        {"kernel_size": 3, "stride": 2, "padding": 1},
        {"kernel_size": 2, "stride": 2, "ceil_mode": True, "padding": 1},
        {"kernel_size": (3, 2), "stride": (2, 1), "dilation": (1, 2), "padding": (1, 0)},
        {"kernel_size": 6, "stride": 1},
        {"kernel_size": 2, "stride": 3, "ceil_mode": True},
    ],
    ids=["tiles", "overlap", "ceil", "dilated", "large", "apart"],
)
SIZES = pytest.mark.parametrize("size", [(8, 8), (7, 9)], ids=["square", "oblong"])


@WINDOWS
@SIZES
def test_max_pooling_and_its_gradient_equal_eager(
    options: dict[str, object], size: tuple[int, int]
) -> None:
    both(lambda x: F.max_pool2d(x, return_indices=True, **options), image(2, 3, *size))


@WINDOWS
def test_gradients_as_a_tpu_adds_them_are_torchs(
    options: dict[str, object], choose: Callable[..., None]
) -> None:
    choose(writes_out_taps=True)
    both(lambda x: F.max_pool2d(x.relu(), return_indices=True, **options), image(2, 3, 7, 9))


def test_gradients_over_rows_and_volumes_as_a_tpu_adds_them_are_torchs(
    choose: Callable[..., None],
) -> None:
    choose(writes_out_taps=True)
    both(lambda x: F.max_pool1d(x, 3, 2, 1), image(2, 3, 9))
    both(lambda x: F.max_pool3d(x, 3, 2, padding=1), image(1, 2, 4, 5, 4))


def test_places_as_a_tpu_keeps_them_are_torchs(choose: Callable[..., None]) -> None:
    choose(writes_out_taps=True)
    x = torch.tensor([[[[1.0, 1.0, 0.0, 2.0], [1.0, 1.0, float("nan"), 3.0]]]])
    both(lambda x: F.max_pool2d(x, 2, return_indices=True), x)
    both(lambda x: F.max_pool2d(x, (1, 3), 1, return_indices=True), torch.zeros(1, 1, 4, 5))
    both(lambda x: F.adaptive_max_pool2d(x, (3, 5), True), image(2, 3, 8, 8))
    # More taps than a byte counts.
    both(lambda x: F.max_pool2d(x, (8, 16), (4, 8), return_indices=True), image(1, 1, 24, 48))


def test_what_a_tpu_keeps_of_a_maximum_for_its_gradient_takes_a_byte(
    choose: Callable[..., None],
) -> None:
    choose(writes_out_taps=True)
    positions = [Windows(8, 4, 3, 2, 1).positions()] * 2
    made = jax.make_jaxpr(lambda x: max_with_indices(x, positions))(jnp.ones((2, 3, 8, 8)))
    (kept,) = [e for e in made.eqns if e.primitive.name == "optimization_barrier"]
    assert [(x.aval.dtype, x.aval.shape) for x in kept.outvars] == [(jnp.int8, (2, 3, 4, 4))]


def test_no_array_of_a_tpus_gradient_is_larger_than_all_places(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    choices = platforms.CHOICES["tpu"]
    assert choices.writes_out_taps
    monkeypatch.setattr(forms, "_chosen", [choices])
    dims = [Windows(8, 4, 3, 2, 1)] * 2
    indices = jnp.zeros((2, 3, 4, 4), int)
    made = jax.make_jaxpr(lambda grad: spread_by_indices(grad, indices, (8, 8), dims))
    found = made(jnp.ones((2, 3, 4, 4)))
    whole = [e for e in found.eqns if e.outvars[0].aval.size == 2 * 3 * 8 * 8]
    # What puts the sums together, and nothing for each tap.
    assert {e.primitive.name for e in whole} <= {"stack", "concatenate", "reshape", "slice"}


def test_of_equal_values_the_first_is_the_maximum_and_a_nan_is_larger() -> None:
    x = torch.tensor([[[[1.0, 1.0, 0.0, 2.0], [1.0, 1.0, float("nan"), 3.0]]]])
    both(lambda x: F.max_pool2d(x, 2, return_indices=True), x)


@pytest.mark.parametrize(
    ("dims", "expected"),
    [
        ([Windows(20, 20, 5, 1, 2)] * 2, True),
        ([Windows(28, 27, 2, 1, 0)] * 2, False),
        ([Windows(24, 12, 2, 2, 0)] * 2, True),
        ([Windows(16, 8, 2, 2, 0)] * 2, False),
        ([Windows(32, 16, 2, 2, 0)] * 2, False),
        ([Windows(9, 9, 1, 1, 0), Windows(20, 20, 5, 1, 2)], False),
        ([Windows(20, 20, 5, 1, 2), Windows(9, 9, 1, 1, 0)], False),
    ],
    ids="overlapping pairs short-rows rows-of-vectors long-rows a-row a-column".split(),
)
def test_maxima_go_by_dim_where_that_is_quicker_on_a_cpu(
    dims: list[Windows], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert is_quicker_by_dim(dims) == expected
    monkeypatch.setattr(forms, "_chosen", [platforms.CHOICES["cuda"]])
    assert not is_quicker_by_dim(dims)


@pytest.mark.parametrize(
    ("options", "size"),
    [((5, 1, 2), 7), ((2, 2), 24), ((3, 2, 1), 28), ((12, 1, 0), 14)],
    ids="overlapping short-rows between many-taps".split(),
)
def test_of_maxima_by_dim_the_first_of_equals_and_the_last_nan_is_torchs(
    options: tuple[int, ...], size: int
) -> None:
    few = image(2, 3, size, size).mul(2).round()
    both(lambda x: F.max_pool2d(x, *options, return_indices=True), few)
    few[few == 3] = float("nan")
    both(lambda x: F.max_pool2d(x.detach(), *options, return_indices=True), few)


def test_volumes_of_overlapping_windows_equal_eager() -> None:
    both(lambda x: F.max_pool3d(x, 3, 1, 1, return_indices=True), image(1, 2, 5, 6, 4).round())


def test_max_pooling_of_one_and_three_dimensions_equals_eager() -> None:
    both(lambda x: F.max_pool1d(x, 3, 2, 1), image(2, 3, 9))
    both(lambda x: F.max_pool3d(x, 2, padding=1), image(1, 2, 4, 5, 4))


@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 2},
        {"kernel_size": 3, "stride": 2, "padding": 1},
        {"kernel_size": 3, "stride": 2, "padding": 1, "count_include_pad": False},
        {"kernel_size": 3, "stride": 2, "ceil_mode": True, "divisor_override": 5},
    ],
    ids=["tiles", "padding", "without-padding", "ceil"],
)
def test_mean_pooling_and_its_gradient_equal_eager(options: dict[str, object]) -> None:
    both(lambda x: F.avg_pool2d(x, **options), image(2, 3, 8, 8))


@pytest.mark.parametrize("ceil", [False, True])
def test_means_as_a_tpu_adds_them_are_torchs(ceil: bool, choose: Callable[..., None]) -> None:
    choose(writes_out_taps=True)
    both(lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=ceil), image(2, 3, 8, 9))
    both(lambda x: F.avg_pool2d(x, 2, ceil_mode=ceil), image(2, 3, 8, 9))


def test_mean_pooling_of_one_and_three_dimensions_equals_eager() -> None:
    both(lambda x: F.avg_pool1d(x, 3, 2, 1), image(2, 3, 9))
    both(lambda x: F.avg_pool3d(x, 2), image(1, 2, 4, 5, 4))


@pytest.mark.parametrize("out", [(4, 2), (3, 5), (1, 1)])
def test_adaptive_pooling_equals_eager(out: tuple[int, int]) -> None:
    both(lambda x: F.adaptive_avg_pool2d(x, out), image(2, 3, 8, 8))
    both(lambda x: F.adaptive_max_pool2d(x, out, True), image(2, 3, 8, 8))


def test_fractional_pooling_takes_torchs_windows() -> None:
    samples = torch.rand(2, 3, 2, dtype=torch.float64)

    def pool(x: torch.Tensor) -> torch.Tensor:
        return F.fractional_max_pool2d(
            x, 2, output_size=(3, 4), _random_samples=samples.to(x.device)
        )

    both(pool, image(2, 3, 8, 9))


def test_unpooling_puts_maxima_back() -> None:
    def there_and_back(x: torch.Tensor) -> torch.Tensor:
        return F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2)

    both(there_and_back, image(2, 3, 8, 8))
