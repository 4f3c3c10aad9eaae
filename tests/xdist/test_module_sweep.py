"""Every module of torch's module database on the device, in training and in evaluation.

Values, gradients of parameters and inputs, and buffers (running statistics) must be the CPU's.
One sample of nearly each module here; `scripts/test --all` takes every sample, in both dtypes. A
module listed in `EXPECTED` must fail: when it starts to pass, its entry has to go.
"""

import copy
import itertools
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch.testing._internal.common_modules import module_db
from torch.utils import _pytree as pytree

import torch_xdist.core.torch_side.registration  # noqa: F401

SHARDS = 2
# With all samples: short enough to see how far it is.
LONG_SHARDS = 12
# Samples that run in one program: compiling takes longer than running.
AT_ONCE = 4
# Made of the others, and slow to compile: only with all samples.
SLOW = {"Transformer", "TransformerEncoder", "TransformerDecoderLayer"}
# What fails, by name, and why.
EXPECTED: dict[str, str] = {}
# Of which a sample's gradients move by more than our error when its inputs do by a unit.
ILL_CONDITIONED = frozenset({"GRU"})


def samples(info: Any, dtype: torch.dtype, training: bool) -> list[Any]:
    """The database's inputs of one module, the same at every call."""
    torch.manual_seed(0)
    options = {"device": "cpu", "dtype": dtype, "requires_grad": True, "training": training}
    return list(info.module_inputs_func(info, **options))


def made(info: Any, sample: Any, dtype: torch.dtype, training: bool) -> torch.nn.Module:
    """A CPU module; one whose sizes depend on its input has seen it."""
    torch.manual_seed(1)
    given = sample.constructor_input
    module = info.module_cls(*given.args, **given.kwargs).to(dtype).train(training)
    if info.is_lazy:
        module(*sample.forward_input.args, **sample.forward_input.kwargs)
    return module


def on_device(info: Any, sample: Any, module: torch.nn.Module, inputs: Any) -> torch.nn.Module:
    """The module on the device; a lazy one finds its sizes there and then takes the values."""
    if not info.is_lazy:
        return copy.deepcopy(module).to("xla")
    given = sample.constructor_input
    dtype = next(module.parameters()).dtype
    lazy = info.module_cls(*given.args, **given.kwargs).to("xla").to(dtype)
    lazy.train(module.training)
    lazy(*inputs[0], **inputs[1])
    lazy.load_state_dict(module.state_dict())
    return lazy


def converted(inputs: Any, **to: Any) -> Any:
    """The inputs elsewhere; a tensor that is given twice stays one tensor."""
    known: dict[int, torch.Tensor] = {}

    def move(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        if id(x) not in known:
            dtype = to.get("dtype") if x.is_floating_point() else None
            moved = x.detach().to(to.get("device", "cpu"), dtype)
            known[id(x)] = moved.requires_grad_(x.requires_grad)
        return known[id(x)]

    return pytree.tree_map(move, inputs)


def tensors_of(value: Any) -> list[torch.Tensor]:
    return [x for x in pytree.tree_leaves(value) if isinstance(x, torch.Tensor)]


def outcome(module: torch.nn.Module, inputs: Any) -> list[torch.Tensor]:
    """What a module computes from its inputs, its gradients, and what its buffers are then."""
    torch.manual_seed(2)
    results = tensors_of(module(*inputs[0], **inputs[1]))
    outs = [x for x in results if x.requires_grad]
    leaves = [x for x in (*module.parameters(), *tensors_of(inputs)) if x.requires_grad]
    seeds = [torch.ones_like(x) for x in outs]
    slopes = torch.autograd.grad(outs, leaves, seeds, allow_unused=True) if outs else []
    return [*results, *tensors_of(slopes), *module.buffers()]


def agree(want: torch.Tensor, have: torch.Tensor) -> bool:
    try:
        torch.testing.assert_close(have, want, equal_nan=True)
    except AssertionError:
        return False
    return True


def as_near(want: torch.Tensor, have: torch.Tensor, exact: torch.Tensor) -> bool:
    """Whether double precision is no farther from ours than from the CPU's single precision."""
    if want.dtype is not torch.float32 or want.shape != have.shape:
        return False
    errors = [(x.double() - exact).abs().max() for x in (have, want)]
    return bool(errors[0] <= 1.1 * errors[1])


def a_unit_away(module: torch.nn.Module, inputs: Any) -> list[torch.Tensor]:
    """The CPU's outcome of parameters and inputs that are off by a unit in their last place.

    By how much it is another one is what single precision can say of the outcome: of a GRU of the
    database whose gradients are up to 50 it is 2e-5, where our results are 1.2e-5 from the exact
    ones, and the CPU's happen to be 6e-6.
    """
    module, inputs = copy.deepcopy(module), converted(inputs)
    draws = torch.Generator().manual_seed(3)
    for x in (*module.parameters(), *tensors_of(inputs)):
        if x.is_floating_point():
            steps = torch.randint(-1, 2, x.shape, generator=draws)
            x.data = x.data * (1 + steps * torch.finfo(x.dtype).eps)
    return outcome(module, inputs)


def is_within(
    module: torch.nn.Module, inputs: Any, index: int, have: torch.Tensor, exact: torch.Tensor
) -> bool:
    """Whether ours is no farther from double precision than `a_unit_away` moves the CPU's."""
    if type(module).__name__ not in ILL_CONDITIONED or have.dtype is not torch.float32:
        return False
    moved, want = (found[index] for found in (a_unit_away(module, inputs), outcome(module, inputs)))
    return bool((have.double() - exact).abs().max() <= (moved - want).abs().max())


def failure(module: torch.nn.Module, inputs: Any, got: list[torch.Tensor]) -> str:
    """How the device's outcome differs from the CPU's; empty where it does not."""
    precise = copy.deepcopy(module).double(), converted(inputs, dtype=torch.float64)
    expected = outcome(module, inputs)
    if len(expected) != len(got):
        return f"{len(got)} tensors instead of {len(expected)}"
    exact: list[torch.Tensor] = []
    for index, (want, have) in enumerate(zip(expected, got)):
        if have.device.type != "xla":
            return f"tensor {index} is on {have.device}"
        want, have = want.detach(), have.detach().cpu()
        if not agree(want, have):
            exact = exact or outcome(*precise)
            right = exact[index].detach()
            if not (as_near(want, have, right) or is_within(module, inputs, index, have, right)):
                return f"tensor {index}: {have} instead of {want}"
    return ""


Case = tuple[Any, int, Any]  # a module of the database, the number of a sample, the sample


def cases(infos: Sequence[Any], dtype: torch.dtype, most: int, training: bool) -> Iterator[Case]:
    for info in infos:
        for number, sample in enumerate(samples(info, dtype, training)[:most]):
            yield info, number, sample


def failures(chosen: Iterator[Case], dtype: torch.dtype, training: bool) -> Iterator[Case]:
    """Those of the cases that go wrong, with what goes wrong in place of the sample."""
    while part := list(itertools.islice(chosen, AT_ONCE)):
        runs = []
        for info, number, sample in part:
            inputs = (sample.forward_input.args, sample.forward_input.kwargs)
            module = made(info, sample, dtype, training)
            mine = converted(inputs, device="xla")
            try:
                got = outcome(on_device(info, sample, module, mine), mine)
            except Exception as error:
                yield info, number, f"{type(error).__name__}: {error}"
                continue
            runs.append((info, number, module, inputs, got))
        for info, number, *run in runs:
            text = failure(*run)
            if text:
                yield info, number, text


def name_of(info: Any) -> str:
    return info.module_cls.__name__


def wrong(infos: Sequence[Any], dtype: torch.dtype, most: int, *, training: bool) -> list[str]:
    """A line for each sample that fails, and for each entry of EXPECTED that does not."""
    found = list(failures(cases(infos, dtype, most, training), dtype, training))
    failed = {name_of(info) for info, _, _ in found}
    names = {name_of(info) for info in infos}
    return [
        f"{name_of(info)} #{number}: {text}"
        for info, number, text in found
        if name_of(info) not in EXPECTED
    ] + [
        f"{name} passes now; take it out of EXPECTED ({reason})"
        for name, reason in EXPECTED.items()
        if name in names - failed
    ]


@pytest.mark.parametrize("shard", [0, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_modules_agree_with_the_cpu(shard, training):
    quick = [m for m in module_db if name_of(m) not in SLOW]
    chosen = [m for m in quick[shard::SHARDS] if training or m.train_and_eval_differ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = wrong(chosen, torch.float32, 1, training=training)
    assert not found, "\n".join(found)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("shard", range(LONG_SHARDS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_every_sample_of_every_module_agrees(shard, dtype, training):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = wrong(module_db[shard::LONG_SHARDS], dtype, 10**6, training=training)
    assert not found, "\n".join(found)
