"""A training step between processes on the mesh transport: XLA's own collectives over gloo."""

import pytest
import torch
from device_ranks import DeviceRanks


def trains(rank, size):
    from torch_xdist import world
    from torch_xdist.core.devices import steps
    from torch_xdist.ranks import collective_ops, gradients, rendezvous

    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2).to("xla")
    gradients.broadcast_master_param(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        mine = torch.randn(8, 4, generator=generator).chunk(size)[rank].to("xla")
        optimizer.zero_grad()
        loss = model(mine).square().mean()
        loss.backward()
        gradients.optimizer_step(optimizer)
        steps.sync()
    scalar = collective_ops.all_reduce("max", torch.tensor(rank + 0.5).to("xla")).item()
    total = rendezvous.mesh_reduce("sum", rank, sum)
    return [p.detach().cpu() for p in model.parameters()], scalar, total, world.transport()


@pytest.mark.long
def test_two_ranks_train_as_one_over_gloo():
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4, generator=generator)).square().mean().backward()
        optimizer.step()
    with DeviceRanks(2, XDIST_TRANSPORT="gloo") as ranks:
        for parameters, scalar, total, transport in ranks.run(trains):
            assert (scalar, total, transport) == (1.5, 1, "mesh")
            for expected, found in zip(model.parameters(), parameters):
                torch.testing.assert_close(found, expected.detach(), rtol=1e-5, atol=1e-6)


def goes_its_own_way(rank, size):
    from torch_xdist.collectives.errors import MismatchError
    from torch_xdist.ranks import collective_ops

    x = torch.ones(2).to("xla")
    both = collective_ops.all_reduce("sum", x).cpu().tolist()
    try:
        collective_ops.all_reduce("max" if rank else "min", x).cpu()
    except MismatchError as error:
        return both, str(error)
    return both, ""


@pytest.mark.long
def test_ranks_that_record_different_collectives_are_told_before_they_hang():
    with DeviceRanks(2, XDIST_TRANSPORT="gloo") as ranks:
        for both, message in ranks.run(goes_its_own_way, timeout_s=60):
            assert both == [2.0, 2.0]
            assert "the ranks differ from collective #1 on" in message
            assert message.count("test_collective_program.py:") == 2
            assert "rank 0: all_reduce" in message and "'min'" in message
            assert "rank 1: all_reduce" in message and "'max'" in message
