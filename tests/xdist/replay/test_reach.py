"""What a call is found to depend on: each thing that can be changed between two calls."""

import dataclasses
import functools
from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import nn

import torch_xla
from torch_xdist.replay.guard import Guard
from torch_xdist.replay.reach import Unfit, reach_of

SCALE = 2.0
NESTED = {"rates": [0.5, {"deep": 1}]}


def helper(x):
    return x * SCALE


@dataclasses.dataclass
class Options:
    width: int = 3
    unread: int = 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.factor, self.unread = 1.5, 7
        self.options = Options()

    def forward(self, x):
        return self.scaled(self.linear(x)) * self.options.width

    def scaled(self, x):
        return x * self.factor


def guard_of(function, *args, **kwargs) -> Guard:
    reach = reach_of(function, args, kwargs)
    return Guard(reach.checks, reach.names)


def breaks(function, change, *args):
    """What a change between two calls is called; "" where it does not count."""
    guard = guard_of(function, *args)
    assert guard.holds(args, {}) and guard.broken(args, {}) is None
    change()
    found = guard.broken(args, {})
    assert guard.holds(args, {}) == (found is None)
    return "" if found is None else found[0].where


@pytest.fixture
def block():
    return Block().to("xla")


def assigned(thing, name, value):
    return lambda: setattr(thing, name, value)


@pytest.mark.parametrize(
    ("name", "value", "where"),
    [
        ("factor", 2.5, "block.factor"),
        ("factor", 1.5, ""),
        ("unread", 8, ""),
        ("training", False, "block.training"),
        ("added", 1, "attributes of block"),
        ("forward", lambda x: x, "attributes of block"),
        ("options", Options(), "block.options"),
    ],
)
def test_attributes_of_modules(block, name, value, where):
    assert breaks(lambda x: block(x), assigned(block, name, value)) == where


def test_attributes_of_objects_that_code_reads(block):
    step = lambda x: block(x)  # noqa: E731
    assert breaks(step, assigned(block.options, "unread", 9)) == ""
    assert breaks(step, assigned(block.options, "width", 9)) == "block.options.width"


@pytest.mark.parametrize(
    "change",
    [
        lambda b: setattr(b.linear, "weight", nn.Parameter(b.linear.weight.detach())),
        lambda b: setattr(b, "linear", nn.Linear(2, 2)),
        lambda b: b.register_buffer("more", torch.zeros(1)),
        lambda b: b.register_forward_hook(lambda *_: None),
        lambda b: b.linear.register_forward_pre_hook(lambda *_: None),
        lambda b: b.register_full_backward_hook(lambda *_: None),
        lambda b: b.linear.weight.register_hook(lambda g: g),
        lambda b: b.linear.bias.register_post_accumulate_grad_hook(lambda p: None),
        lambda b: b.linear.weight.requires_grad_(False),
        lambda b: setattr(b.linear.weight, "data", b.linear.weight.data * 2),
    ],
)
def test_members_hooks_and_gradients_of_modules(block, change):
    assert breaks(lambda x: block(x), lambda: change(block))


def test_values_in_place_do_not_count(block):
    def change():
        with torch.no_grad():
            block.linear.weight.mul_(2)

    assert breaks(lambda x: block(x), change) == ""


def test_globals_variables_and_what_functions_that_are_called_read(monkeypatch):
    step = lambda x: helper(x)  # noqa: E731
    assert breaks(step, lambda: monkeypatch.setitem(globals(), "SCALE", 3.0)) == "the global SCALE"
    assert breaks(step, lambda: monkeypatch.setitem(globals(), "helper", print))
    value = 1

    def changed():
        nonlocal value
        value = 2

    assert breaks(lambda x: x * value, changed) == "value"


def test_containers_are_compared_by_their_elements():
    step = lambda x: x * NESTED["rates"][0]  # noqa: E731
    rates = NESTED["rates"]
    assert breaks(step, lambda: NESTED.update(rates=[*rates])) == ""
    assert breaks(step, lambda: NESTED["rates"][1].update(deep=2)) == (
        "the global NESTED['rates'][1]['deep']"
    )
    assert (
        breaks(step, lambda: NESTED["rates"].append(3))
        == "the length of the global NESTED['rates']"
    )


def test_arrays_and_sets_are_compared_by_what_they_hold():
    array, names = np.zeros(3), {"a"}
    step = lambda x: x * array.sum() * len(names)  # noqa: E731
    assert breaks(step, lambda: array.fill(1)) == "what array holds"
    assert breaks(step, lambda: names.add("b")) == "names"


def test_tensors_of_the_cpu_are_compared_by_their_version():
    table = torch.zeros(3)
    step = lambda x: x + table.to("xla")  # noqa: E731
    assert breaks(step, lambda: table.add_(1)) == "what table holds"


def test_numbers_are_compared_by_type_and_sign():
    values = [1, 0.0, float("nan")]
    step = lambda x: x * values[0]  # noqa: E731
    assert breaks(step, lambda: None) == ""
    for place, new in ((0, True), (0, 1.0), (1, -0.0)):
        old = values[place]
        assert breaks(step, lambda p=place, n=new: values.__setitem__(p, n)) == f"values[{place}]"
        values[place] = old


def test_partials_methods_and_defaults_are_looked_into():
    options = Options()

    class Trainer:
        rate = 1

        def step(self, x):
            return x * self.rate * options.width

    trainer = Trainer()
    assert breaks(trainer.step, assigned(options, "width", 5)) == "options.width"
    assert breaks(functools.partial(trainer.step), assigned(options, "width", 6)) == "options.width"
    trainer.rate = 2
    assert breaks(trainer.step, assigned(trainer, "rate", 3)).endswith(".rate")


def test_hyperparameters_states_and_members_of_optimizers(block):
    optimizer = torch.optim.AdamW(block.parameters(), 0.1)
    block(torch.ones(1, 2).to("xla")).sum().backward()
    optimizer.step()
    step = lambda: optimizer.step()  # noqa: E731
    group = optimizer.param_groups[0]
    where = "optimizer.param_groups[0]"
    assert breaks(step, lambda: group.update(lr=0.2)) == f"{where}['lr']"
    assert breaks(step, lambda: group.update(betas=(0.5, 0.9))) == f"{where}['betas'][0]"
    last = group["params"][-1]
    assert breaks(step, lambda: group["params"].pop()) == f"{where}['params']"
    group["params"].append(last)
    state = optimizer.state[block.linear.weight]
    assert breaks(step, lambda: state.update(exp_avg=torch.zeros(2, 2).to("xla")))
    assert breaks(step, lambda: optimizer.load_state_dict(optimizer.state_dict()))
    state = optimizer.state[block.linear.weight]
    assert breaks(step, lambda: optimizer.register_step_pre_hook(lambda *_: None))
    assert breaks(step, lambda: state["step"].add_(1)) == ""


@pytest.mark.parametrize(
    ("other", "where"),
    [
        ((torch.ones(3),), "argument 0"),
        ((torch.ones(2, dtype=torch.float64),), "argument 0"),
        ((torch.ones(2), torch.ones(2)), "the number of arguments"),
        ((1.0,), "argument 0"),
        ((torch.ones(4)[2:],), "argument 0"),
        ((torch.zeros(2),), ""),
    ],
)
def test_arguments_are_compared_by_their_types(other, where):
    def there(part):
        return part.to("xla") if isinstance(part, torch.Tensor) and part.is_contiguous() else part

    guard = guard_of(lambda x: x, torch.ones(2).to("xla"))
    args = tuple(map(there, other))
    if where == "argument 0" and isinstance(other[0], torch.Tensor) and other[0].storage_offset():
        args = (torch.ones(4).to("xla")[2:],)
    found = guard.broken(args, {})
    assert ("" if found is None else found[0].where) == where
    assert guard.holds(args, {}) == (not where)


def test_plain_values_and_nests_among_the_arguments():
    x = torch.ones(2).to("xla")
    guard = guard_of(lambda *_, **__: 0, OrderedDict(a=[x, 3]), flag=True)
    assert guard.holds((OrderedDict(a=[x + 1, 3]),), {"flag": True})
    for args, kwargs, where in (
        ((OrderedDict(a=[x, 4]),), {"flag": True}, "argument 0['a'][1]"),
        ((OrderedDict(b=[x, 3]),), {"flag": True}, "the length of argument 0['a']"),
        (({"a": [x, 3]},), {"flag": True}, "the length of argument 0"),
        ((OrderedDict(a=[x, 3]),), {"flag": 1}, "argument flag"),
        ((OrderedDict(a=[x, 3]),), {}, "the number of arguments"),
    ):
        assert not guard.holds(args, kwargs)
        assert guard.broken(args, kwargs)[0].where == where


def test_modules_and_optimizers_among_the_arguments_are_the_same_ones(block):
    optimizer = torch.optim.SGD(block.parameters(), 0.1)
    guard = guard_of(lambda m, o: 0, block, optimizer)
    assert guard.holds((block, optimizer), {})
    assert guard.broken((Block(), optimizer), {})[0].where == "argument 0"
    optimizer.param_groups[0]["lr"] = 0.2
    assert guard.broken((block, optimizer), {})[0].where == "argument 1.param_groups[0]['lr']"


def test_objects_among_the_arguments_are_compared_by_what_is_read_of_them():
    step = lambda options: options.width  # noqa: E731
    guard = guard_of(step, Options(3, 4))
    assert guard.holds((Options(3, 5),), {})
    assert guard.broken((Options(4, 4),), {})[0].where == "argument 0.width"


def test_what_is_no_argument_of_a_replay_says_why():
    for given, told in (
        (torch.ones(2), r"argument 0 is a torch.FloatTensor of shape \(2,\) on cpu; give tensors"),
        (np.ones(2), "argument 0 is a numpy array; give tensors of the device"),
        (torch.ones(2).to("xla").requires_grad_(), "argument 0 requires a gradient; let the"),
    ):
        with pytest.raises(Unfit, match=told):
            reach_of(lambda x: x, (given,), {})


def test_the_forward_of_a_class_that_is_replaced(block, monkeypatch):
    def change():
        monkeypatch.setattr(Block, "forward", lambda self, x: x)

    assert breaks(lambda x: block(x), change) == "Block.forward"


def test_attributes_of_an_optimizer_of_the_users(block):
    class Halving(torch.optim.SGD):
        factor = 0.5

        def step(self):
            for group in self.param_groups:
                group["lr"] *= self.factor

    optimizer = Halving(block.parameters(), 0.1)
    optimizer.factor = 0.25
    change = assigned(optimizer, "factor", 0.75)
    assert breaks(lambda: optimizer.step(), change) == "optimizer.factor"


def test_loops_of_references_end():
    loop = []
    loop.append(loop)
    assert guard_of(lambda x: (x, loop), torch.ones(1).to("xla")).checks
    torch_xla.sync()
