"""Classes of others that wrap device tensors: on `xla` for users, with gradients, among ours."""

import pytest
import torch
from torch.utils._pytree import tree_map

import torch_xla  # noqa: F401
from torch_xdist.errors import DeviceError


class Scaled(torch.Tensor):
    """Numbers as whole ones and a scale, as libraries keep quantized weights."""

    @staticmethod
    def __new__(cls, whole, scale):
        return torch.Tensor._make_wrapper_subclass(
            cls, whole.shape, dtype=scale.dtype, device=whole.device, requires_grad=False
        )

    def __init__(self, whole, scale):
        self.whole, self.scale = whole, scale

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.detach.default:
            return cls(args[0].whole, args[0].scale)
        plain = tree_map(lambda x: x.whole * x.scale if isinstance(x, cls) else x, args)
        return func(*plain, **(kwargs or {}))


def scaled(device):
    return Scaled(torch.arange(6, device=device).view(2, 3), torch.tensor(0.5, device=device))


@pytest.mark.parametrize("given", ["by name", "by place"])
def test_a_subclass_says_where_it_is(given):
    class Placed(Scaled):
        @staticmethod
        def __new__(cls, whole, scale):
            if given == "by name":
                return Scaled.__new__(cls, whole, scale)
            rest = (
                whole.stride(),
                0,
                torch.contiguous_format,
                scale.dtype,
                torch.strided,
                whole.device,
            )
            return torch.Tensor._make_wrapper_subclass(cls, whole.shape, *rest)

    x = Placed(torch.ones(2, 2, device="xla"), torch.tensor(2.0, device="xla"))
    assert x.device == torch.device("xla", 0)
    assert Placed(torch.ones(2, 2), torch.tensor(2.0)).device == torch.device("cpu")


def test_a_subclass_with_a_device_of_its_own_keeps_it():
    class Elsewhere(Scaled):
        device = torch.device("meta")

    assert Elsewhere(torch.ones(2, device="xla"), torch.tensor(2.0)).device.type == "meta"


@pytest.mark.parametrize("place", ["first", "last", "view", "written"])
def test_operators_on_both_are_the_other_class_s(place):
    def run(device):
        x, w = torch.ones(2, 2, device=device), scaled(device)
        if place == "written":
            return x.mul_(2).addmm_(w, w.t())
        return {"first": lambda: w.t() @ x, "last": lambda: x @ w, "view": lambda: w.view(3, 2)}[
            place
        ]()

    got = run("xla")
    assert type(got).__name__ == "XlaTensor" and torch.equal(got.cpu(), run("cpu"))


def test_gradients_pass_a_subclass():
    def run(device):
        x = torch.ones(4, 2, device=device, requires_grad=True)
        torch.nn.functional.linear(x, scaled(device).t()).sin().sum().backward()
        weight = torch.nn.Parameter(scaled(device))
        y = torch.ones(4, 2, device=device)
        (y @ weight).sin().sum().backward()
        return x.grad.cpu(), weight.grad.cpu()

    torch.testing.assert_close(run("xla"), run("cpu"))


def test_autocast_reaches_a_subclass():
    with torch.autocast("xla", torch.bfloat16):
        assert (scaled("xla") @ scaled("xla").t()).dtype is torch.bfloat16
        x = torch.nested.nested_tensor([torch.ones(2, 3)], layout=torch.jagged, device="xla")
        assert torch.nn.functional.linear(x, torch.ones(2, 3, device="xla")).dtype is torch.bfloat16


def test_autocast_holds_in_what_torch_compiles():
    layer = torch.nn.Linear(3, 2).to("xla")

    @torch.compile(fullgraph=True, backend="openxla")
    def step(x):
        with torch.autocast("xla", torch.bfloat16):
            return layer(x)

    assert step(torch.ones(4, 3, device="xla")).dtype is torch.bfloat16


def test_a_tensor_of_the_cpu_is_still_refused():
    with pytest.raises(DeviceError, match="Input tensor is not an XLA tensor"):
        torch.ones(2, device="xla") @ torch.ones(2)
