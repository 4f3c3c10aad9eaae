"""Parts of FSDP by torch_xla's names: buckets, stand-ins, trees of tensors, states."""

import pytest
import torch
from torch import nn

from torch_xla.distributed.fsdp import utils
from torch_xla.distributed.fsdp import xla_fully_sharded_data_parallel as fsdp


def buckets(rank, size):
    from torch_xdist.core.run.device_trace import trace_here
    from torch_xla.distributed.fsdp import utils

    parts = []
    scatter = utils.BucketizedReduceScatter(1, size, None, True)
    for number in range(2):
        scatter(torch.arange(4.0, device="xla") + number, parts.append)
    waiting = len(parts)
    scatter.flush()
    scatter.flush()
    at_once = utils.BucketizedReduceScatter(0, size, None, True)
    at_once.scale = 0.5
    at_once(torch.ones(4, device="xla"), parts.append)
    rows = trace_here(parts[0].value.trace.device).tape.collectives
    alone = utils.DummyReduceScatter(size)
    alone(torch.arange(4.0, device="xla"), parts.append)
    alone.flush()
    whole = utils.dummy_all_gather(torch.ones(2, 1, device="xla"), 1)
    return waiting, len(rows), [part.tolist() for part in parts], tuple(whole.shape)


def test_two_ranks_reduce_in_buckets(two):
    assert two.run(buckets) == [
        (0, 2, [[0, 2], [2, 4], [1, 1], [0, 1]], (2, 2)),
        (0, 2, [[4, 6], [6, 8], [1, 1], [2, 3]], (2, 2)),
    ]


def test_stand_ins_exchange_nothing():
    x = torch.ones(2, device="xla")
    assert utils.dummy_all_reduce("sum", x, 3.0).tolist() == [3, 3]
    (written,) = utils.dummy_all_reduce("sum", [x], 3.0)
    assert written is x and x.tolist() == [3, 3]
    with pytest.raises(ValueError, match="shard_count is 2 in a world of 1 ranks"):
        utils.DummyReduceScatter(2)


def test_tensors_are_found_in_every_container():
    one, two = torch.ones(1), torch.zeros(1)
    container = {"a": [one, 3], "b": (two, {one})}
    assert fsdp.collect_tensors(container) == [one, two]
    doubled = fsdp.apply_to_tensors(lambda t: t + 1, container)
    assert doubled["a"][0].item() == 2 and doubled["a"][1] == 3
    assert [t.item() for t in doubled["b"][1]] == [2]


def test_linear_layers_get_another_forward_pass():
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU()).to("xla")
    x = torch.randn(4, 2, device="xla", requires_grad=True)
    expected = torch.autograd.grad(model(x).sum(), [x, *model.parameters()])
    assert utils.apply_xla_patch_to_nn_linear(model) is model
    found = torch.autograd.grad(model(x).sum(), [x, *model.parameters()])
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.cpu(), other.cpu())
    other = utils.apply_xla_patch_to_nn_linear(nn.Linear(2, 2), lambda layer, x: x + 1)
    assert other(torch.ones(2)).tolist() == [2, 2]
    out = utils.XLAPatchedLinear.apply(x.detach(), model[0].weight, None)
    torch.testing.assert_close(out.cpu(), (x @ model[0].weight.t()).detach().cpu())


def test_a_unit_says_where_in_a_step_it_is():
    states = []

    class Looking(nn.Linear):
        def forward(self, x):
            states.append(unit.training_state)
            return super().forward(x)

    unit = fsdp.XlaFullyShardedDataParallel(Looking(2, 2))
    unit.assert_state(fsdp.TrainingState.IDLE)
    out = unit(torch.ones(1, 2, device="xla"))
    out.register_hook(lambda _: states.append(unit.training_state))
    out.sum().backward()
    assert states[0] is fsdp.TrainingState.FORWARD
    unit.assert_state([fsdp.TrainingState.IDLE])
    with pytest.raises(ValueError, match=r"expected to be in states \[<TrainingState.FORWARD"):
        unit.assert_state(fsdp.TrainingState.FORWARD)


def test_constants_are_those_of_torch_xla():
    assert [torch.float32, torch.float16, torch.bfloat16] == fsdp.FLOAT_DTYPES
    assert fsdp.XLA_DISABLE_FUNCTIONALIZATION is False and fsdp.inf == float("inf")
    assert not fsdp.chkpt_status.in_chkpt_bwd
    assert utils.checkpoint is not None and fsdp.recursive_wrap is not None
