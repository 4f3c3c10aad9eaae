"""Training with marks: the numbers of one device, a part of the memory, no program too many."""

import numpy as np
import pytest
import torch
from spmd_process import SpmdProcess

import torch_xla
import torch_xla.debug.metrics as met
import torch_xla.distributed.spmd as xs
from torch_xdist.core.programs import program
from torch_xdist.spmd import look

four = SpmdProcess(4)


def trained(model, steps, place, cut):
    """The loss of each step of AdamW on batches that are the same everywhere."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    draw = torch.Generator().manual_seed(0)
    losses = []
    for _ in range(steps):
        x = torch.randn(16, 12, generator=draw, dtype=torch.float64)
        y = torch.randint(4, (16,), generator=draw)
        x, y = place(x), place(y)
        cut(x, y)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        torch_xla.sync()
        losses.append(loss.item())
    return losses, optimizer


def network():
    torch.manual_seed(0)
    first, last = torch.nn.Linear(12, 16), torch.nn.Linear(16, 4)
    model = torch.nn.Sequential(first, torch.nn.LayerNorm(16), torch.nn.GELU(), last)
    return model.double()


def by_data(model):
    mesh = xs.Mesh(np.arange(4), (4,), ("data",))
    return lambda x, y: (
        xs.mark_sharding(x, mesh, ("data", None)),
        xs.mark_sharding(y, mesh, ("data",)),
    )


def by_data_and_model(model):
    mesh = xs.Mesh(np.arange(4), (2, 2), ("data", "model"))
    xs.mark_sharding(model[0].weight, mesh, ("model", None))
    xs.mark_sharding(model[0].bias, mesh, ("model",))
    xs.mark_sharding(model[3].weight, mesh, (None, "model"))
    return lambda x, y: (
        xs.mark_sharding(x, mesh, ("data", None)),
        xs.mark_sharding(y, mesh, ("data",)),
    )


def by_odd_parts(model):
    mesh = xs.Mesh(np.arange(4), (4,), ("all",))
    xs.mark_sharding(model[0].weight, mesh, (None, "all"))  # 12 columns: 3 each
    xs.mark_sharding(model[3].bias, mesh, ("all",))
    xs.mark_sharding(model[1].weight, mesh, ("all",))
    return lambda x, y: xs.mark_sharding(x, mesh, (None, "all"))


@pytest.mark.parametrize("way", [by_data, by_data_and_model, by_odd_parts])
@four
def test_a_sharded_training_has_the_losses_of_the_cpu(way):
    expected, _ = trained(network(), 5, lambda t: t, lambda x, y: None)
    model = network().to("xla")
    found, _ = trained(model, 5, lambda t: t.to("xla"), way(model))
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@four
def test_after_the_second_step_nothing_is_compiled():
    model = network().to("xla")
    cut = by_data_and_model(model)
    trained(model, 2, lambda t: t.to("xla"), cut)
    before = met.counter_value("UncachedCompile")
    model = network().to("xla")
    trained(model, 6, lambda t: t.to("xla"), by_data_and_model(model))
    assert met.counter_value("UncachedCompile") == before


@four
def test_a_batch_that_is_cut_makes_xla_sum_the_gradients():
    model = network().to("xla")
    trained(model, 1, lambda t: t.to("xla"), by_data(model))
    assert look.collectives().keys() == {"all-reduce"}


@four
def test_optimizer_states_lie_as_their_parameters():
    mesh = xs.Mesh(np.arange(4), (4,))
    model = torch.nn.Linear(64, 64, bias=False).to("xla")
    xs.mark_sharding(model.weight, mesh, (0, None))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(4, 64).to("xla")).sum().backward()
        optimizer.step()
        torch_xla.sync()
    state = optimizer.state[model.weight]
    for tensor in (model.weight, state["exp_avg"], state["exp_avg_sq"]):
        parts = tensor.value.buffer.addressable_shards
        assert [part.data.nbytes for part in parts] == [64 * 64 * 4 // 4] * 4


@four
def test_a_program_keeps_nothing_of_the_launch_it_was_made_for():
    program.PROGRAMS.clear()
    before = sum(look.bytes_per_device().values())
    x = torch.ones(64, 64).to("xla")
    y = x * 3 + 1
    assert y.sum().item() == 64 * 64 * 4
    del x, y
    torch_xla.sync()
    assert sum(look.bytes_per_device().values()) <= before
    assert len(program.PROGRAMS) > 0


@four
def test_what_became_of_the_marks_is_asked_after_a_program_ran():
    program.PROGRAMS.clear()
    with pytest.raises(ValueError, match="collectives: no program ran yet"):
        look.collectives()
    held = look.bytes_per_device()
    assert set(held) <= {"CPU:0", "CPU:1", "CPU:2", "CPU:3"}


@four
def test_control_flow_and_random_numbers_are_those_of_one_device():
    mesh = xs.Mesh(np.arange(4), (4,))
    torch_xla.manual_seed(3)
    whole = torch.rand(8, 8, device="xla")
    whole.cpu()
    torch_xla.manual_seed(3)
    cut = torch.rand(8, 8, device="xla")
    xs.mark_sharding(cut, mesh, (0, None))
    assert torch.equal(cut.cpu(), whole.cpu())
