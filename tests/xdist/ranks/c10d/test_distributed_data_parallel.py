"""torch's DistributedDataParallel on the device: hooks, options, uneven inputs, checkpoints."""

import pytest
import torch
from device_ranks import DeviceRanks
from torch import nn


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 6))


def batch_of(rank, step):
    return torch.randn(4, 5, generator=torch.Generator().manual_seed(10 * step + rank))


def join():
    import torch.distributed as dist

    import torch_xla.distributed.xla_backend  # noqa: F401

    if not dist.is_initialized():
        dist.init_process_group("xla", init_method="xla://")


def whole_training(size, steps=3):
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        for rank in range(size):
            (model(batch_of(rank, step)).square().mean() / size).backward()
        optimizer.step()
    return model.state_dict()


def replicated_training(rank, size, options, hook):
    """The parameters after three steps."""
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    import torch_xla

    def own(state, bucket):
        done = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        return done.then(lambda found: found.value()[0] / size)

    join()
    model = nn.parallel.DistributedDataParallel(make_model().to("xla"), **options)
    world = dist.group.WORLD
    if hook == "own":
        model.register_comm_hook(None, own)
    if hook == "fp16":
        model.register_comm_hook(world, default_hooks.fp16_compress_hook)
    if hook == "powerSGD":
        state = powerSGD_hook.PowerSGDState(
            world, matrix_approximation_rank=8, start_powerSGD_iter=2
        )
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        model(batch_of(rank, step).to("xla")).square().mean().backward()
        optimizer.step()
        torch_xla.sync()
    return {name: value.cpu() for name, value in model.module.state_dict().items()}


@pytest.mark.parametrize(
    ("options", "hook"),
    [
        ({"static_graph": True, "gradient_as_bucket_view": True}, "own"),
        pytest.param({"bucket_cap_mb": 0.0001}, None, marks=pytest.mark.long),
        pytest.param({"device_ids": [0]}, "fp16", marks=pytest.mark.long),
        pytest.param({"static_graph": True}, "powerSGD", marks=pytest.mark.long),
    ],
    ids=str,
)
def test_hooks_and_options_train_like_one_process(two, options, hook):
    tolerance = 1e-4 if hook == "fp16" else 1e-6
    for found in two.run(replicated_training, options, hook):
        torch.testing.assert_close(found, whole_training(2), rtol=1e-4, atol=tolerance)


def loop_without_sync(rank, size):
    """The parameters after six steps, and how many exchanges had run where each began.

    Rank 0 looks at more in between.
    """
    from torch_xdist.progress import PROGRESS

    join()
    model = nn.parallel.DistributedDataParallel(make_model().to("xla"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    exchanges = [PROGRESS.collective]
    for step in range(6):
        x = batch_of(rank, step).to("xla")
        exchanges.append(PROGRESS.collective)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        if rank == 0:
            shown = [model.module(batch_of(0, step).to("xla")).sigmoid().mean() for _ in range(4)]
            shown[-1].sqrt()
    before = [count - exchanges[0] for count in exchanges]
    return {name: value.cpu() for name, value in model.module.state_dict().items()}, before


def test_a_loop_that_ends_no_step_is_cut_in_the_same_rounds_on_all_ranks(two):
    (found, of_first), (others, of_second) = two.run(loop_without_sync)
    torch.testing.assert_close(found, whole_training(2, steps=6), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(others, found, rtol=0, atol=0)
    # The first also sends the parameters, the second the order in which gradients came.
    assert of_first == of_second == [0, 0, 2, 5, 6, 7, 8]


def uneven(rank, size):
    """Rank 1 has two batches more."""
    join()
    model = nn.parallel.DistributedDataParallel(make_model().to("xla"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.join():
        for step in range(1 + 2 * rank):
            optimizer.zero_grad()
            model(batch_of(rank, step).to("xla")).square().mean().backward()
            optimizer.step()
    return [p.tolist() for p in model.parameters()]


@pytest.mark.long
def test_uneven_inputs_end_with_equal_parameters(two):
    one, other = two.run(uneven)
    assert one == other
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        for rank in range(2) if step == 0 else [1]:
            # Who has joined gives zeros, and is counted.
            (model(batch_of(rank, step)).square().mean() / 2).backward()
        optimizer.step()
    for found, expected in zip(one, model.parameters()):
        torch.testing.assert_close(torch.tensor(found), expected.detach(), rtol=1e-5, atol=1e-6)


def wrapped(kind):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    import torch_xla.runtime as xr

    model = make_model().to("xla")
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    return fully_shard(model, mesh=init_device_mesh("xla", (xr.world_size(),)))


def stepped(model, optimizer):
    """Whole parameters, on every rank, after a step in which all ranks have the same batch."""
    optimizer.zero_grad()
    model(batch_of(0, 0).to("xla")).square().mean().backward()
    optimizer.step()
    tensors = list(model.parameters())
    return [(p.full_tensor() if hasattr(p, "full_tensor") else p).tolist() for p in tensors]


def saved(rank, size, folder):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict

    join()
    found = []
    for kind in ("ddp", "fully_shard"):
        model = wrapped(kind)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        stepped(model, optimizer)
        parameters, state = get_state_dict(model, optimizer)
        dcp.save({"model": parameters, "optimizer": state}, checkpoint_id=f"{folder}/{kind}")
        found.append(stepped(model, optimizer))
    return found


def loaded(rank, size, folder):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    join()
    found = []
    for source in ("ddp", "fully_shard"):
        for kind in ("ddp", "fully_shard"):
            model = wrapped(kind)
            optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
            parameters, state = get_state_dict(model, optimizer)
            read = {"model": parameters, "optimizer": state}
            dcp.load(read, checkpoint_id=f"{folder}/{source}")
            set_state_dict(
                model, optimizer, model_state_dict=read["model"], optim_state_dict=read["optimizer"]
            )
            found.append(stepped(model, optimizer))
    return found


@pytest.mark.long
def test_checkpoints_of_two_ranks_go_on_with_three_in_either_form(two, tmp_path):
    (ddp, sharded), other = two.run(saved, str(tmp_path))
    assert [ddp, sharded] == other
    with DeviceRanks(3) as three:
        for found in three.run(loaded, str(tmp_path)):
            for parameters, expected in zip(found, [ddp, ddp, sharded, sharded]):
                for value, wanted in zip(parameters, expected):
                    value, wanted = torch.tensor(value), torch.tensor(wanted)
                    torch.testing.assert_close(value, wanted, rtol=1e-5, atol=1e-6)
