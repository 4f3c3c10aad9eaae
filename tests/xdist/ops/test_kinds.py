"""Kinds of numbers that torch has no kernels for: refused, in CPU torch's words."""

import pytest
import torch
import torch.nn.functional as F

import torch_xdist.core.torch_side.registration  # noqa: F401
from torch_xdist import metrics
from torch_xdist.core.record.cpu_only import NoKernelError
from torch_xdist.ops.kinds import NOT_OF_COMPLEX, NOT_OF_FLOATS, NOT_OF_INTEGERS

OF_INTEGERS = {
    "softmax": lambda x: x.softmax(-1),
    "cross entropy": lambda x: F.cross_entropy(x, x[:, 0]),
    "layer norm": lambda x: F.layer_norm(x, (3,)),
    "group norm": lambda x: F.group_norm(x, 1),
    "gelu": F.gelu,
    "celu": F.celu,
    "mish": F.mish,
    "hardswish": F.hardswish,
    "squares": lambda x: F.mse_loss(x, x),
    "hypot": lambda x: torch.hypot(x, x),
    "lerp": lambda x: torch.lerp(x, x, 0.5),
    "lerp in place": lambda x: x.lerp_(x, 0.5),
    "histogram": lambda x: x.histc(4),
}
OF_COMPLEX = {
    "greater": lambda x: x > 1,
    "less, in place": lambda x: x.lt_(x),
    "the largest": lambda x: x.max(),
    "argmin": lambda x: x.argmin(),
    "clamp": lambda x: x.clamp(min=0),
    "relu": lambda x: x.relu(),
    "median": lambda x: x.median(),
    "mode": lambda x: x.mode(),
    "round": lambda x: x.round(),
    "sign": lambda x: x.sign(),
    "log softmax": lambda x: x.log_softmax(-1),
    "the largest, out=": lambda x: torch.amax(x, 0, out=torch.empty_like(x[0])),
}


@pytest.mark.parametrize(
    ("run", "dtype"),
    [
        *[pytest.param(run, torch.int64, id=name) for name, run in OF_INTEGERS.items()],
        *[pytest.param(run, torch.complex64, id=name) for name, run in OF_COMPLEX.items()],
    ],
)
def test_a_kind_that_torch_has_no_kernel_for_is_refused_in_its_words(run, dtype):
    x = torch.ones(2, 3).to(dtype)
    with pytest.raises((NotImplementedError, RuntimeError)) as refusal:
        run(x.clone())
    before = metrics.counter_value("MarkStep"), metrics.counter_value("Cut.fallback")
    with pytest.raises(type(refusal.value)) as ours:
        run(x.to("xla"))
    assert str(refusal.value) in str(ours.value)
    assert before == (metrics.counter_value("MarkStep"), metrics.counter_value("Cut.fallback"))


def test_the_refusal_names_the_operator_and_what_to_do():
    with pytest.raises(
        NoKernelError, match=r"aten\.gelu\.default: .* for 'Int'; torch has no .* cast them first"
    ):
        F.gelu(torch.ones(2, dtype=torch.int32, device="xla"))


def test_floats_where_whole_numbers_are_needed_are_refused_with_that_cast():
    x = torch.ones(2, device="xla")
    with pytest.raises(NoKernelError, match=r"gcd_cpu.* for 'Float'.* cast them .*\.long\(\)"):
        torch.gcd(x, x)


@pytest.mark.parametrize(
    "run",
    [
        lambda x: F.softmax(x, -1, dtype=torch.float32),
        lambda x: torch.hypot(x, x.float()),
        lambda x: F.mse_loss(x, x.float()),
        lambda x: x.max() + x.clamp(0, 1) + x.relu(),
        lambda x: x.sqrt() + x.mean(dtype=torch.float32),
    ],
)
def test_what_torch_promotes_or_computes_exactly_is_computed(run):
    x = torch.arange(6).reshape(2, 3)
    torch.testing.assert_close(run(x.to("xla")).cpu(), run(x))


def test_each_name_is_an_operator_of_torch():
    for name in NOT_OF_INTEGERS | NOT_OF_COMPLEX | NOT_OF_FLOATS:
        packet, overload = name.split(".")
        assert overload in getattr(torch.ops.aten, packet).overloads(), name
