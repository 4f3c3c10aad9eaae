"""Convolutions on the device equal eager torch's, in every form the lowering takes."""

import functools
import re
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from devices_agree import both

import torch_xla
from torch_xdist import platforms
from torch_xdist.ahead import step
from torch_xdist.core.devices import aim
from torch_xdist.ops import conv_forms, conv_rules, forms
from torch_xdist.ops.conv import convolution, convolution_backward
from torch_xdist.ops.conv_columns import gathered_weight_gradient, spread_input_gradient
from torch_xdist.ops.conv_forms import Window
from torch_xdist.ops.conv_phases import input_gradient_by_phases


def arrays(x: tuple[int, ...], w: tuple[int, ...], bias: int) -> list[torch.Tensor]:
    torch.manual_seed(0)
    kind = torch.float64
    return [torch.randn(*s, dtype=kind) for s in (x, w, (bias,))]


VOLUMES = {
    "strided and dilated": {"stride": (2, 1, 2), "padding": (2, 0, 1), "dilation": (2, 1, 1)},
    "grouped": {"padding": 1, "groups": 2},
    "of one plane": {"stride": (3, 2, 1)},
}
DEPTHS = {"strided and dilated": 3, "grouped": 2, "of one plane": 1}


@pytest.mark.parametrize("name", VOLUMES)
def test_convolutions_of_volumes_and_their_gradients_equal_eager(name) -> None:
    options = VOLUMES[name]
    weight = (6, 4 // options.get("groups", 1), DEPTHS[name], 3, 2)
    both(lambda *a: F.conv3d(*a, **options), *arrays((2, 4, 7, 6, 5), weight, 6))


@pytest.mark.parametrize("extra", [(0, 0, 0), (1, 0, 1)], ids=str)
def test_transposed_convolutions_of_volumes_equal_eager(extra) -> None:
    options = {"stride": 2, "padding": (1, 0, 0), "output_padding": extra}
    both(lambda *a: F.conv_transpose3d(*a, **options), *arrays((2, 4, 3, 2, 3), (4, 2, 3, 2, 3), 2))


@pytest.mark.parametrize(
    ("x", "w", "options"),
    [
        ((2, 4, 9, 8), (6, 4, 3, 2), {"stride": 2, "padding": 1, "dilation": (1, 2)}),
        ((2, 4, 5, 5), (3, 4, 1, 1), {"stride": 2}),
        ((2, 9, 2, 2), (8, 9, 1, 1), {}),
        ((2, 3, 6, 6), (3, 1, 3, 3), {"padding": 1, "groups": 3}),
        ((2, 3, 7, 6), (6, 1, 3, 3), {"stride": 2, "padding": 1, "groups": 3}),
        ((2, 4, 6, 6), (6, 2, 3, 3), {"groups": 2, "padding": 1}),
        ((2, 1, 6, 6), (5, 1, 3, 3), {}),
    ],
    ids=[
        "general",
        "1x1",
        "1x1 of many channels",
        "depthwise",
        "depthwise-many",
        "groups",
        "one-channel",
    ],
)
def test_a_2d_convolution_and_its_gradients_equal_eager(
    x: tuple[int, ...], w: tuple[int, ...], options: dict[str, object]
) -> None:
    both(lambda *a: F.conv2d(*a, **options), *arrays(x, w, w[0]))


def test_convolutions_of_one_and_three_dimensions_equal_eager() -> None:
    both(lambda *a: F.conv1d(*a, stride=2, padding=1), *arrays((2, 3, 8), (4, 3, 3), 4))
    both(lambda *a: F.conv3d(*a, padding=1), *arrays((1, 2, 4, 5, 3), (3, 2, 3, 3, 3), 3))


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_a_transposed_convolution_equals_eager(groups: int) -> None:
    tensors = arrays((2, 4, 4, 5), (4, 8 // groups, 3, 3), 8)
    both(
        lambda *a: F.conv_transpose2d(
            *a, stride=2, padding=1, output_padding=1, groups=groups, dilation=2
        ),
        *tensors,
    )


@pytest.mark.parametrize(
    ("kernel", "options"),
    [
        ((2, 2, 2), {"stride": 2}),
        ((4, 2, 4), {"stride": 2, "padding": (1, 0, 1)}),
        ((1, 2, 6), {"stride": (1, 2, 3), "padding": (0, 1, 2), "output_padding": (0, 1, 1)}),
    ],
    ids=str,
)
def test_volumes_grow_as_by_eager(kernel: tuple[int, ...], options: dict[str, Any]) -> None:
    tensors = arrays((2, 4, 3, 4, 3), (4, 5, *kernel), 5)
    both(lambda *a: F.conv_transpose3d(*a, **options), *tensors)
    x, w, _ = tensors
    x = torch.randn(2, 5, 7, 8, 9, dtype=torch.double)
    options = {name: option for name, option in options.items() if name != "output_padding"}
    both(lambda *a: F.conv3d(*a, **options), x, w, torch.zeros(4, dtype=torch.double))


def test_output_padding_may_exceed_the_padding() -> None:
    tensors = arrays((1, 2, 4, 4), (2, 3, 2, 2), 3)
    both(lambda *a: F.conv_transpose2d(*a, dilation=3, output_padding=2), *tensors)


@pytest.mark.parametrize("kernel", [(1, 1), (3, 3)], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_once(dtype: torch.dtype, kernel: tuple[int, int]) -> None:
    x, w, bias = (t.to(dtype) for t in arrays((2, 4, 6, 6), (4, 4, *kernel), 4))
    wide = F.conv2d(x.float(), w.float(), bias.float()).to(dtype)
    found = F.conv2d(x.to("xla"), w.to("xla"), bias.to("xla")).cpu()
    torch.testing.assert_close(found, wide, rtol=torch.finfo(dtype).eps, atol=1e-6)


def test_an_empty_batch_gives_an_empty_result_and_zero_gradients() -> None:
    both(F.conv2d, *arrays((0, 3, 5, 5), (2, 3, 3, 3), 2))


@pytest.mark.parametrize(
    ("size", "options"),
    [
        ((2, 2), {"padding": 1}),
        ((1, 2), {"padding": (1, 2), "stride": (1, 2)}),
        ((2, 2), {"padding": 2, "dilation": 2}),
    ],
)
def test_a_kernel_larger_than_its_input_equals_eager(size: Any, options: dict[str, Any]) -> None:
    both(functools.partial(F.conv2d, **options), *arrays((3, 4, *size), (5, 4, 3, 3), 5))


def test_the_second_derivative_equals_eager() -> None:
    def penalty(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        out = F.conv2d(x, w, bias, stride=2).sin().sum()
        return torch.autograd.grad(out, w, create_graph=True)[0]

    both(penalty, *arrays((1, 2, 7, 7), (2, 2, 3, 3), 2))


Dims = list[tuple[int, int, int, int]]


def operands(dims: Dims, n: int = 2) -> tuple[Window, list[torch.Tensor]]:
    """Of dimensions (stride, taps, padding, by how much the input exceeds the least)."""
    stride, kernel, padding, _ = zip(*dims)
    sizes = [max(1, k - 2 * p) + more for _, k, p, more in dims]
    torch.manual_seed(0)
    x, w = torch.randn(n, 3, *sizes), torch.randn(4, 3, *kernel)
    convolve = F.conv1d if len(dims) == 1 else F.conv2d
    grad = torch.randn_like(convolve(x, w, stride=stride, padding=padding))
    return Window(stride, padding, padding, (1,) * len(dims), 1), [x, w, grad]


def eager_gradients(window: Window, x: Any, w: Any, grad: Any) -> list[torch.Tensor]:
    rest = (None, window.stride, window.padding, window.dilation, False, [0] * len(window.stride))
    found = torch.ops.aten.convolution_backward.default(grad, x, w, *rest, 1, [True, True, False])
    return list(found[:2])


def agrees(found: Any, expected: torch.Tensor) -> None:
    torch.testing.assert_close(torch.from_numpy(np.array(found)), expected)


def in_jax(*tensors: torch.Tensor) -> list[Any]:
    return [jnp.asarray(tensor.numpy()) for tensor in tensors]


WHOLE: list[Dims] = [
    [(3, 6, 2, 7)],
    [(2, 4, 1, 3), (2, 2, 0, 2)],
    [(4, 4, 1, 5), (1, 2, 3, 1)],
    [(3, 3, 4, 0), (2, 4, 4, 6)],
]
ANY: list[Dims] = [
    [(1, 5, 4, 0)],
    [(1, 3, 1, 4), (2, 5, 0, 3)],
    [(4, 1, 2, 5), (3, 4, 3, 0)],
]


def test_the_input_gradient_by_phases_equals_eagers() -> None:
    cases = [operands(dims) for dims in WHOLE]

    @jax.jit
    def found(arrays: Any) -> Any:
        return [
            input_gradient_by_phases(grad, w, x.shape, window)
            for (window, _), (x, w, grad) in zip(cases, arrays)
        ]

    for (window, tensors), array in zip(cases, found([in_jax(*tensors) for _, tensors in cases])):
        agrees(array, eager_gradients(window, *tensors)[0])


def test_gradients_by_columns_equal_eagers() -> None:
    cases = [operands(dims) for dims in ANY]

    @jax.jit
    def found(arrays: Any) -> Any:
        return [
            (
                spread_input_gradient(grad, w, x.shape, window),
                gathered_weight_gradient(grad, x, w.shape, window),
            )
            for (window, _), (x, w, grad) in zip(cases, arrays)
        ]

    for (window, tensors), both_ in zip(cases, found([in_jax(*tensors) for _, tensors in cases])):
        for array, expected in zip(both_, eager_gradients(window, *tensors)):
            agrees(array, expected)


WINDOW = Window((1, 1), (0, 0), (0, 0), (1, 1), 1)
BY_TWO = replace(WINDOW, stride=(2, 2))


@pytest.mark.parametrize(
    ("grad", "w", "window", "form"),
    [
        ((64, 20, 8, 8), (20, 10, 5, 5), WINDOW, "columns"),
        ((8, 64, 28, 28), (64, 64, 3, 3), WINDOW, "native"),
        ((32, 512, 1, 1), (512, 256, 3, 3), BY_TWO, "columns"),
        ((16, 128, 8, 8), (128, 64, 4, 4), BY_TWO, "phases"),
        ((16, 128, 8, 8), (128, 3, 4, 4), BY_TWO, "columns"),
        ((16, 32, 8, 8), (32, 4, 4, 4), BY_TWO, "phases"),
        ((16, 128, 8, 8), (128, 3, 2, 2), BY_TWO, "phases"),
        ((64, 20, 512, 512), (20, 10, 5, 5), WINDOW, "native"),
        ((2, 4, 9, 9, 9), (4, 2, 3, 3, 3), replace(WINDOW, stride=(1, 1, 1)), "native"),
        ((2, 4, 9, 9, 9), (4, 2, 4, 4, 4), replace(WINDOW, stride=(2, 2, 2)), "phases"),
        ((64, 20, 8, 8), (20, 10, 5, 5), replace(WINDOW, groups=2), "native"),
    ],
    ids=[
        "few channels",
        "many channels",
        "smaller than its kernel",
        "the stride divides the kernel",
        "few channels and phases",
        "as many as are enough",
        "patches",
        "too many columns",
        "volumes",
        "volumes whose strides divide the kernel",
        "groups",
    ],
)
def test_the_form_of_an_input_gradient_on_a_cpu(
    grad: tuple[int, ...], w: tuple[int, ...], window: Window, form: str
) -> None:
    assert conv_rules.input_gradient(grad, w, window) == form


@pytest.mark.parametrize(("samples", "form"), [(3, "columns"), (4, "native")])
def test_few_samples_have_the_weight_gradient_by_columns(samples: int, form: str) -> None:
    assert conv_rules.weight_gradient((samples, 64, 28, 28), (64, 64, 3, 3), WINDOW) == form


@pytest.mark.parametrize(
    ("x", "w", "stride"),
    [
        ((2, 3, 12, 8), (5, 3, 4, 4), 4),
        ((2, 3, 14, 11), (5, 3, 4, 2), (4, 2)),
        ((2, 3, 4, 4), (5, 3, 4, 4), 1),
        ((2, 3, 6, 9), (5, 3, 4, 3), (5, 3)),
        ((3, 2, 9), (4, 2, 2), 2),
    ],
    ids=["plain", "with a rest", "one window", "one by three, with a rest", "of one dim"],
)
def test_windows_of_few_samples_that_do_not_overlap_are_columns_by_one_transpose(
    x: tuple[int, ...], w: tuple[int, ...], stride: Any
) -> None:
    torch.manual_seed(0)
    value = F.conv2d if len(x) == 4 else F.conv1d
    both(
        lambda *a: value(*a, stride=stride), *(torch.randn(s, dtype=torch.float64) for s in (x, w))
    )
    parts = torch.zeros(x, device="xla"), torch.zeros(w, device="xla", requires_grad=True)
    value(*parts, stride=stride).square().sum().backward()
    program = torch_xla._XLAC._get_xla_tensors_hlo([parts[1].grad])
    # One where there is a rest; those of the taps would be as many as these.
    assert program.count(" slice(") <= 1


def test_other_platforms_keep_xlas_own_gradients() -> None:
    def gradients(grad: Any, x: Any, w: Any) -> Any:
        ones = [1, 1]
        rest = (None, ones, [0, 0], ones, False, [0, 0], 1, [True, True, False])
        return convolution_backward(grad, x, w, *rest)

    shapes = [(2, 5, 6, 6), (2, 3, 8, 8), (5, 3, 3, 3)]
    arrays = [jax.ShapeDtypeStruct(shape, "float32") for shape in shapes]
    exported = {
        name: jax.export.export(jax.jit(gradients), platforms=[name])(*arrays).mlir_module()
        for name in ("cpu", "tpu")
    }
    assert {name: text.count("stablehlo.convolution") for name, text in exported.items()} == {
        "cpu": 0,
        "tpu": 2,
    }


@pytest.mark.parametrize(
    ("x", "w", "options"),
    [
        ((2, 3, 9, 8), (5, 3, 4, 2), {"stride": (4, 2), "padding": (1, 0)}),
        ((2, 3, 3, 4), (5, 3, 3, 3), {"stride": 2, "padding": 1}),
        ((2, 3, 3, 4), (5, 3, 2, 3), {"stride": 3, "padding": 1}),
        ((2, 3, 9), (5, 3, 6), {"stride": 3, "padding": 2}),
    ],
    ids=["as many taps in each phase", "larger than its gradient", "phases without taps", "1d"],
)
def test_strides_whose_gradients_go_by_phases_equal_eager(
    x: tuple[int, ...], w: tuple[int, ...], options: dict[str, Any]
) -> None:
    convolve = F.conv1d if len(x) == 3 else F.conv2d
    both(lambda *a: convolve(*a, **options), *arrays(x, w, w[0]))


def test_an_infinite_gradient_stays_in_the_positions_that_its_taps_see() -> None:
    x, w = torch.randn(1, 2, 6, 6), torch.randn(3, 2, 4, 4)
    grad = torch.zeros(1, 3, 3, 3)
    grad[0, 0, 1, 1] = float("inf")
    window = Window((2, 2), (1, 1), (1, 1), (1, 1), 1)
    expected = eager_gradients(window, x, w, grad)[0].isinf().numpy()
    for form in (input_gradient_by_phases, spread_input_gradient):
        assert np.array_equal(np.isinf(form(*in_jax(grad, w), x.shape, window)), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_half_precision_volume_is_rounded_once(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, w = torch.randn(1, 8, 4, 5, 4), torch.randn(8, 4, 3, 3, 3)
    x, w = x.to(dtype), w.to(dtype)
    exact = F.conv_transpose3d(x.double(), w.double())
    found = F.conv_transpose3d(x.to("xla"), w.to("xla")).cpu()
    assert (
        torch.equal(found, exact.to(dtype))
        or (found.double() - exact).abs().max()
        <= (exact.to(dtype).double() - exact).abs().max() * 1.01
    )


class Gpu:
    """Of a device that is not here, what is looked at."""

    platform = "gpu"


def on_a_gpu(x: torch.Tensor, w: torch.Tensor, **options: Any) -> list[tuple[str, str]]:
    """The dtypes of the convolutions and products that a GPU is given, in HLO."""
    leaves = [t.to("xla").requires_grad_() for t in (x, w)]
    with aim.at([Gpu()]):
        found = getattr(F, f"conv{x.dim() - 2}d")(*leaves, **options)
        found.backward(torch.ones_like(found))
        pending = [found, *(leaf.grad for leaf in leaves)]
        text = str(torch_xla._XLAC._get_xla_tensors_hlo(pending))
    step.forget()
    return re.findall(r"= (\w+)\[[^ ]* (dot|convolution)\(", text)


@pytest.mark.parametrize("kernel", [(1, 1), (3, 3)])
@pytest.mark.parametrize("stride", [1, 2])
def test_gpus_are_asked_for_convolutions_of_planes_as_what_they_are(kernel, stride) -> None:
    # A text is for this CPU, which has gradients of its own for fewer.
    x, w = torch.ones(8, 16, 10, 10), torch.ones(4, 16, *kernel)
    assert on_a_gpu(x, w, stride=stride) == [("f32", "convolution")] * 3
    halves = on_a_gpu(x.bfloat16(), w.bfloat16(), stride=stride)
    assert halves == [("bf16", "convolution")] * 3


def test_a_bias_is_added_before_halves_are_rounded() -> None:
    x, w = torch.ones(2, 8, 6, 6).bfloat16(), torch.ones(4, 8, 3, 3).bfloat16()
    bias = torch.ones(4).bfloat16().to("xla")
    assert on_a_gpu(x, w, bias=bias)[0] == ("f32", "convolution")


def test_sequences_and_volumes_stay_products_on_gpus() -> None:
    for sizes in ((6,), (6, 6, 6)):
        x, w = torch.ones(2, 8, *sizes), torch.ones(4, 8, *[1] * len(sizes))
        assert {name for _, name in on_a_gpu(x, w)} == {"dot"}


@pytest.mark.parametrize("kernel", [(1, 1), (3, 3)])
@pytest.mark.parametrize("options", [{}, {"stride": 2}, {"groups": 2}, {"padding": 1}])
def test_values_as_a_gpu_computes_them_are_torchs(kernel, options, choose) -> None:
    choose(has_cudnn=True)
    x, w, bias = arrays((3, 4, 7, 6), (6, 4 // options.get("groups", 1), *kernel), 6)
    both(lambda *a: F.conv2d(*a, **options), x, w)
    both(lambda *a: F.conv2d(*a, **options), x, w, bias)


@pytest.mark.parametrize("groups", [2, 8])
def test_groups_as_a_tpu_computes_them_are_torchs(groups, choose) -> None:
    choose(writes_out_taps=True)
    x, w, _ = arrays((2, 8, 9, 8), (16, 8 // groups, 3, 3), 1)
    both(lambda *a: F.conv2d(*a, groups=groups, stride=2, padding=1), x, w)
    x, w, _ = arrays((2, 8, 5, 4), (8, 16 // groups, 3, 3), 1)
    both(lambda *a: F.conv_transpose2d(*a, groups=groups, stride=2), x, w)
    x, w, _ = arrays((2, 8, 11), (8, 8 // groups, 3), 1)
    both(lambda *a: F.conv1d(*a, groups=groups, dilation=2), x, w)


def test_a_tpu_keeps_a_convolution_of_groups_one(monkeypatch) -> None:
    choices = platforms.CHOICES["tpu"]
    assert choices.writes_out_taps
    monkeypatch.setattr(forms, "_chosen", [choices])
    x, w = jnp.ones((2, 8, 9, 8)), jnp.ones((8, 1, 3, 3))
    made = jax.make_jaxpr(lambda *a: convolution(*a, None, (1,), (0,), (1,), False, (0,), 8))
    assert [e.primitive.name for e in made(x, w).eqns] == ["conv_general_dilated"]


def test_convolutions_are_so_on_gpus_alone() -> None:
    assert [name for name, x in platforms.CHOICES.items() if x.has_cudnn] == ["cuda"]


@pytest.mark.parametrize(
    ("dtype", "weight", "expected"),
    [
        (torch.float64, (8, 3, 3, 3), False),
        (torch.float64, (300, 3, 3, 3), False),
        (torch.float32, (300, 3, 3, 3), True),
        (torch.float64, (8, 3, 9, 9), True),
    ],
    ids=["float64", "a large weight", "float32", "too many taps"],
)
def test_float64_is_computed_as_products_on_a_cpu(dtype, weight, expected) -> None:
    """XLA has a plain loop for it, which takes up to fifty times as long."""
    torch_xla.sync()
    x = torch.randn(2, 3, 12, 12, dtype=dtype).to("xla").requires_grad_()
    w = torch.randn(weight, dtype=dtype).to("xla").requires_grad_()
    out = F.conv2d(x, w, padding=1)
    gradients = torch.autograd.grad(out.square().sum(), (x, w))
    text = torch_xla._XLAC._get_xla_tensors_hlo([out, *gradients])
    assert (" convolution(" in text) == expected


def test_float64_of_too_many_columns_is_xlas_own() -> None:
    x, w = (jax.ShapeDtypeStruct(shape, "float64") for shape in ((64, 64, 64, 64), (8, 64, 3, 3)))
    assert not conv_forms._is_product(x, w, WINDOW)
    assert conv_forms._is_product(jax.ShapeDtypeStruct((2, *x.shape[1:]), x.dtype), w, WINDOW)
