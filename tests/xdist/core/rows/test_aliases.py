"""Results are written over what they update, not over what merely has their type."""

import itertools
import re
from itertools import compress

import jax
import jax.numpy as jnp
import pytest
import torch
import torch.nn.functional as F

import torch_xla
from torch_xdist.core.devices import device as devices_here
from torch_xdist.core.programs import program
from torch_xdist.core.programs.jax_internals import alias
from torch_xdist.core.programs.launch import live_values, prepare
from torch_xdist.core.rows import aliases
from torch_xdist.core.trace.tensor_types import TensorType

OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.1, amsgrad=True),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "momentum, one by one": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=False),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
}


def made(optimizer, device):
    torch.manual_seed(0)
    # Equal layers: all of these have results of one type.
    model = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(3)], torch.nn.LayerNorm(4))
    model = model.to(device)
    return model, OPTIMIZERS[optimizer](model.parameters())


def train(model, optimizer):
    x = torch.linspace(-1, 1, 8).reshape(2, 4).to(next(model.parameters()).device)
    optimizer.zero_grad()
    F.mse_loss(model(x).cos(), x).backward()
    optimizer.step()


def held(model, optimizer):
    """Parameters and what the optimizer keeps of them on the device."""
    states = [t for state in optimizer.state.values() for t in state.values()]
    return [*model.parameters(), *(t for t in states if t is not None and t.device.type == "xla")]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_is_updated_gives_its_place_to_what_it_becomes(name):
    model, optimizer = made(name, "xla")
    for _ in range(2):
        train(model, optimizer)
        torch_xla.sync()
    assert_each_has_its_own_place(lambda: train(model, optimizer), lambda: held(model, optimizer))


def assert_each_has_its_own_place(step, tensors):
    """What `step` makes of each of these tensors of the device goes over what it was."""
    # Nothing else may hold the buffers, so only their addresses are kept.
    before = [id(t.value.buffer) for t in tensors()]
    step()
    tape = devices_here.trace_of(devices_here.default_index()).tape
    outs = sorted({value.slot for value in live_values(tape)} - tape.buffers.keys())
    launch = prepare(tape, devices_here.device_at(0), outs, may_donate=True)
    given = [*compress(launch.leaves, launch.mask)]
    found = aliases.pairs(launch.entries, given, launch.outs)
    places = {id(tape.buffers[slot]): place for place, slot in enumerate(given)}
    after = [t.value.slot for t in tensors()]
    assert [launch.outs[found[places[address]]] for address in before] == after
    assert len({*found.values()}) == len(found)


def test_running_statistics_and_weights_with_channels_last_keep_theirs():
    torch.manual_seed(0)
    layers = [(torch.nn.Conv2d(4, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU()) for _ in "ab"]
    model = torch.nn.Sequential(*itertools.chain(*layers)).to("xla")
    model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    images = torch.randn(2, 4, 8, 8).to("xla")

    def step():
        # The gradients stay: they are results of the step too, of the types of what they change.
        optimizer.zero_grad()
        model(images).cos().mean().backward()
        optimizer.step()

    for _ in range(2):
        step()
        torch_xla.sync()
    assert_each_has_its_own_place(step, lambda: [*held(model, optimizer), *model.buffers()])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_values_are_those_of_torch(name):
    program.PROGRAMS.clear()
    both = [made(name, device) for device in ("cpu", "xla")]
    for _ in range(4):
        for model, optimizer in both:
            train(model, optimizer)
        torch_xla.sync()
    for one, other in zip(both[0][0].parameters(), both[1][0].parameters()):
        torch.testing.assert_close(other.cpu(), one)
    # Nothing that is updated is copied, gradients are no donated array's.
    count = len(held(*both[1]))
    last = [*program.PROGRAMS.values()][-1].executable.text()
    assert last.count("may-alias") >= count


def lowered(step, *arguments):
    there = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    jitted = jax.jit(step, donate_argnums=0, in_shardings=there, out_shardings=there)
    return jitted.lower(*arguments)


def told(program):
    """Which result is written over each argument of a lowered program, None where none is."""
    head = re.search(r"@main\((.*?)\) ->", program.as_text(), re.DOTALL).group(1)
    found = [re.search(r"aliasing_output = (\d+)", part) for part in head.split("%arg")[1:]]
    return [int(match.group(1)) if match else None for match in found]


def test_the_rest_keeps_as_many_places():
    a, b, c = jnp.zeros(3), jnp.ones(3), jnp.ones((2, 2))

    def step(donated, kept):
        a, _, b, c = donated
        return [kept + 1, b * 2, a * 3, c + 1, kept - 1]

    program = lowered(step, (a, b, b, c), jnp.ones(3))
    assert told(program) == [0, 1, 3, None]
    # By the places before what is not read was left out.
    alias(program, {0: 2})
    assert told(program) == [2, 0, 3, None]
    alias(program, {0: 3, 1: 4, 2: 1})
    # Of another type, or not read: as if nothing was said.
    assert told(program) == [0, 1, 3, None]


def types(*shapes):
    return [TensorType(shape, torch.float32, (1,), 0) for shape in shapes]


def test_arrays_are_given_away_where_a_result_is_of_their_kind():
    leaves, results = types((2,), (3,), (2,)), types((2,))
    assert aliases.of_use((True, True, False), leaves, results) == (True, False, False)


def test_a_program_that_is_given_less_is_enough_where_each_result_has_a_place():
    leaves, results = types((2,), (2,), (3,)), types((2,))
    more = True, True, True
    assert aliases.is_enough((True, False, False), more, leaves, results)
    assert not aliases.is_enough((False, False, True), more, leaves, results)
    assert not aliases.is_enough((True, False, False), more, leaves, results * 2)


def test_what_is_wanted_is_what_results_have_no_place_in():
    leaves, results = types((2,), (2,), (3,)), types((2,), (2,))
    assert aliases.wanted((True, False, False), leaves, results) == [1]
    assert aliases.wanted((True, True, False), leaves, results) == []
    assert aliases.is_within((True, False), (True, True))
    assert not aliases.is_within((True, False), (False, True))
