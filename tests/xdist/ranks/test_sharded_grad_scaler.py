"""An overflow in one rank's part of a model lets every rank skip the step."""

import pytest
import torch
from torch import nn


def skipped(rank, size, kind):
    """For each scaler and optimizer: whether the parameters stayed, and the scale after it."""
    import torch_xla
    import torch_xla.distributed.xla_backend
    from torch_xla.amp import GradScaler, syncfree
    from torch_xla.distributed.fsdp import FSDP
    from torch_xla.distributed.zero_redundancy_optimizer import ZeroRedundancyOptimizer

    found = []
    for make_scaler in (GradScaler, lambda **options: torch.amp.GradScaler("xla", **options)):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 6)).to("xla")
        optimizer_class = torch.optim.SGD
        if kind == "fsdp":
            model = FSDP(model, _shard_size_multiple=1)
        if kind == "fully_shard":
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard

            fully_shard(model, mesh=init_device_mesh("xla", (size,)))
        if kind == "zero":
            optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
        else:
            optimizer_class = syncfree.SGD if make_scaler is GradScaler else torch.optim.SGD
            optimizer = optimizer_class(model.parameters(), lr=0.1)
        scaler = make_scaler(init_scale=8.0)
        for overflows in (True, False):
            optimizer.zero_grad()
            before = [local(p).detach().cpu().clone() for p in model.parameters()]
            scaler.scale(model(torch.ones(2, 6, device="xla")).square().mean()).backward()
            if overflows and rank == 1:
                first = next(p for p in model.parameters() if p.grad is not None)
                with torch.no_grad():
                    local(first.grad).view(-1)[0] = torch.inf
            scaler.step(optimizer)
            scaler.update()
            torch_xla.sync()
            after = [local(p).detach().cpu() for p in model.parameters()]
            stayed = [torch.equal(old, new) for old, new in zip(before, after)]
            found.append((all(stayed), any(stayed), scaler.get_scale()))
    return found


def local(tensor):
    return getattr(tensor, "_local_tensor", tensor)


@pytest.mark.parametrize("kind", ["fsdp", "zero", "fully_shard"])
def test_every_rank_skips_the_step_in_which_one_overflowed(two, kind):
    assert two.run(skipped, kind) == [[(True, True, 4.0), (False, False, 4.0)] * 2] * 2
