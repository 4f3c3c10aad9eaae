"""The optimizer whose state is divided between ranks, against the undivided one."""

import pytest
import torch


def make_model():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3))
    model.scale = torch.nn.Parameter(torch.tensor(2.0))
    return model


def loss_of(model, batch):
    return (model(batch) * model.scale).square().mean() * 20


def batches():
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(4, 5, generator=generator) for _ in range(4)]


def divided(rank, size, options):
    from torch_xdist.core.devices import steps
    from torch_xdist.ranks.zero import ZeroRedundancyOptimizer

    model = make_model().to("xla")
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01, **options)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    for step, batch in enumerate(batches()):
        if step == 2:
            saved = optimizer.state_dict()
            optimizer = ZeroRedundancyOptimizer(
                model.parameters(), torch.optim.Adam, lr=0.01, **options
            )
            optimizer.load_state_dict(saved)
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 100)
        optimizer.zero_grad()
        loss_of(model, batch.chunk(size)[rank].to("xla")).backward()
        optimizer.step()
        schedule.step()
        steps.sync()
    shards = [p.shape[0] for p in optimizer.base_optimizer.param_groups[0]["params"]]
    norm = None if optimizer.grad_norm is None else optimizer.grad_norm.item()
    return [p.detach().cpu() for p in model.parameters()], shards, norm


@pytest.mark.parametrize(
    "options",
    [
        {"save_master_weights": True, "use_grad_acc_hook": True, "higher_cc_precision": True},
        pytest.param({"grad_clipping": False}, marks=pytest.mark.long),
        pytest.param(
            {"bucket_cap_mb_all_gather": 1e-6, "bucket_cap_mb_reduce_scatter": 1e-6},
            marks=pytest.mark.long,
        ),
    ],
    ids=["clipped", "free", "buckets"],
)
def test_a_divided_state_trains_like_a_whole_one(two, options):
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    norm = None
    for batch in batches():
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        if options.get("grad_clipping", True):
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    for parameters, shards, found_norm in two.run(divided, options):
        assert shards == [1, 4, 4, 2, 2]
        for expected, found in zip(model.parameters(), parameters):
            torch.testing.assert_close(found, expected.detach(), rtol=1e-5, atol=1e-5)
        if norm is None:
            assert found_norm is None
        else:
            assert found_norm == pytest.approx(norm.item(), rel=1e-5)


def alone(**options):
    from torch_xdist.ranks.zero import ZeroRedundancyOptimizer

    weight = torch.nn.Parameter(torch.ones(3, device="xla"))
    return weight, ZeroRedundancyOptimizer([weight], torch.optim.SGD, lr=1.0, **options)


def test_groups_are_chosen_before_the_parameters_are_divided():
    _, optimizer = alone(lazy_init=True)
    assert optimizer.sharding_groups == [[0]] and not optimizer.inited
    with pytest.raises(RuntimeError, match=r"must call init_zero\(\) first"):
        optimizer.step()
    optimizer.sharding_groups = [[0]]
    optimizer.init_zero()
    with pytest.raises(RuntimeError, match="already inited, so the parameters are divided"):
        optimizer.sharding_groups = [[0]]


def test_gradients_become_zero_or_nothing():
    weight, optimizer = alone(use_grad_acc_hook=True, grad_clipping=False)
    weight.sum().backward()
    assert weight.grad is None and weight.main_grad.tolist() == [1, 1, 1]
    optimizer.zero_grad()
    assert weight.main_grad.tolist() == [0, 0, 0]
    optimizer.zero_grad(set_to_none=True)
    assert not hasattr(weight, "main_grad")
    optimizer.remove_hooks()
    weight.sum().backward()
    assert weight.grad.tolist() == [1, 1, 1]
    assert optimizer.get_shape_info() == {0: torch.Size([3])}


def test_master_weights_become_the_parameters_when_they_are_loaded():
    weight, optimizer = alone(save_master_weights=True)
    weight.sum().backward()
    optimizer.step()
    saved, after = optimizer.state_dict(), weight.tolist()
    other, loaded = alone(save_master_weights=True)
    loaded.load_state_dict(saved)
    assert other.tolist() == after != [1, 1, 1] and optimizer.grad_norm is not None


def in_stages(rank, size):
    from torch_xdist.ranks.zero import ZeroRedundancyOptimizer

    everybody = list(range(size))
    stages = [
        {"scale_factor": 1.0, "sharding_group": [[r] for r in everybody], "group_size": 1},
        {"scale_factor": 2.0, "sharding_group": [everybody], "group_size": size},
    ]
    weight = torch.nn.Parameter(torch.ones(4, device="xla"))
    optimizer = ZeroRedundancyOptimizer([weight], torch.optim.SGD, lr=1.0, grad_clipping=False)
    (weight * (rank + 1)).sum().backward()
    optimizer.step(sharding_scheme=stages)
    stepped = weight.tolist()
    with torch.no_grad():
        weight.zero_()
    optimizer.allgather_weights_and_update_full_parameter(stages)
    return stepped, weight.tolist()


def test_gradients_travel_in_the_stages_of_a_scheme(two):
    # The mean gradient is 1.5, and the second stage doubles it.
    assert two.run(in_stages) == [([-2.0] * 4, [-2.0] * 4)] * 2
