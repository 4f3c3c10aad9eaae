"""torch's FullyShardedDataParallel on two ranks of the device, against the whole model."""

import pytest
import torch
from torch import nn


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 64), nn.Tanh(), nn.Linear(64, 33))


def batch_of(rank, step):
    return torch.randn(4, 5, generator=torch.Generator().manual_seed(10 * step + rank))


def whole_training(size, clip):
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(3):
        optimizer.zero_grad()
        mean = sum(model(batch_of(rank, step)).square().mean() for rank in range(size)) / size
        mean.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        losses.append(mean.item())
    return losses, model.state_dict()


def sharded_training(rank, size, strategy, options, clip):
    """Losses, the whole state, cuts of the last step, and the elements held between steps."""
    import gc

    import jax
    import torch.distributed as dist
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    import torch_xla
    import torch_xla.distributed.xla_backend
    from torch_xdist.core.run import cuts

    if not dist.is_initialized():
        dist.init_process_group("xla", init_method="xla://")
    gc.collect()
    torch_xla.sync(wait=True)
    known = {id(array) for array in jax.live_arrays()}
    if options.pop("mixed", False):
        half = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        options["mixed_precision"] = half
    model = FullyShardedDataParallel(
        make_model().to("xla"),
        sharding_strategy=ShardingStrategy[strategy],
        auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
        **options,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(3):
        optimizer.zero_grad()
        cuts.LOG.clear()
        loss = model(batch_of(rank, step).to("xla")).float().square().mean()
        loss.backward()
        if clip:
            model.clip_grad_norm_(clip)
        optimizer.step()
        torch_xla.sync()
        log = [(cut.reason, cut.compiled) for cut in cuts.LOG]
        dist.all_reduce(mean := loss.detach().clone(), op=dist.ReduceOp.AVG)
        losses.append(mean.item())
    optimizer.zero_grad()
    gc.collect()
    torch_xla.sync(wait=True)
    held = sum(array.size for array in jax.live_arrays() if id(array) not in known)
    state = {name: value.cpu() for name, value in model.state_dict().items()}
    return losses, state, log, held


MORE = [
    ("FULL_SHARD", {"use_orig_params": True, "device_id": torch.device("xla")}, None),
    ("SHARD_GRAD_OP", {"use_orig_params": True}, None),
    ("NO_SHARD", {}, None),
    ("FULL_SHARD", {"mixed": True}, None),
]


@pytest.mark.parametrize(
    ("strategy", "options", "clip"),
    [("FULL_SHARD", {}, 0.05), *[pytest.param(*way, marks=pytest.mark.long) for way in MORE]],
    ids=str,
)
def test_a_sharded_model_trains_like_a_whole_one(two, strategy, options, clip):
    losses, expected = whole_training(2, clip)
    tolerance = 2e-2 if "mixed" in options else 1e-5
    for found, state, log, held in two.run(sharded_training, strategy, options, clip):
        assert found == pytest.approx(losses, rel=tolerance)
        assert list(state) == list(expected)
        for name, value in expected.items():
            torch.testing.assert_close(state[name], value, rtol=tolerance, atol=tolerance)
        # One cut per step, and nothing new to compile in the third.
        assert log == [("sync", False)]
        if strategy == "FULL_SHARD" and not options:
            assert held < 0.6 * sum(value.numel() for value in expected.values())


def test_the_module_is_completed_whenever_it_is_imported(monkeypatch):
    import importlib
    import sys

    from torch_xdist.ranks.c10d import torch_fsdp
    from torch_xdist.releases import late_imports

    module = importlib.import_module(torch_fsdp._NAME)
    torch_fsdp.register()
    handle = module._FSDPDeviceHandle.from_device(torch.device("xla"))
    assert handle.current_device() == torch.device("xla", 0) and handle.is_available()
    assert handle.Event().synchronize() is None
    monkeypatch.delitem(sys.modules, torch_fsdp._NAME)
    torch_fsdp.register()
    again = importlib.import_module(torch_fsdp._NAME)
    assert again is not module
    handle = again._FSDPDeviceHandle.from_device(torch.device("xla"))
    assert handle.current_device() == torch.device("xla", 0)
    assert not late_imports.is_awaited(torch_fsdp._NAME)
