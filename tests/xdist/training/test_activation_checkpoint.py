"""Blocks that are computed again in the backward pass: same gradients, really computed twice."""

import pytest
import torch

from torch_xdist.torch_xla_compat import graphs
from torch_xla.utils import checkpoint


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 8), torch.nn.Linear(8, 4)
        self.seen = []

    def forward(self, x, scale=2.0):
        self.seen.append(checkpoint.chkpt_status.in_chkpt_bwd)
        hidden = torch.nn.functional.dropout(self.first(x).tanh(), 0.5)
        return self.second(hidden).sin() * scale


def block():
    torch.manual_seed(0)
    return Block().to("xla")


def gradients(model, run):
    torch.manual_seed(1)
    x = torch.linspace(-1, 1, 8, device="xla").reshape(2, 4).requires_grad_()
    run(model, x).square().sum().backward()
    return [x.grad, *(p.grad for p in model.parameters())]


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpointed_block_has_the_gradients_of_a_plain_one(reentrant):
    model = block()
    found = gradients(model, lambda m, x: checkpoint.checkpoint(m, x, 3.0, use_reentrant=reentrant))
    expected = gradients(block(), lambda m, x: m(x, 3.0))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.cpu(), other.cpu())
    assert model.seen == [False, reentrant]
    assert not checkpoint.chkpt_status.in_chkpt_bwd


@pytest.mark.parametrize("reentrant", [True, False])
def test_xla_does_not_join_the_second_computation_with_the_first(monkeypatch, reentrant):
    monkeypatch.setenv("XLA_DUMP_POST_OPTIMIZATIONS", "1")
    plain = graphs.hlo_of(gradients(block(), lambda m, x: m(x)))
    again = graphs.hlo_of(
        gradients(block(), lambda m, x: checkpoint.checkpoint(m, x, use_reentrant=reentrant))
    )
    assert again.count(" tanh(") > plain.count(" tanh(") > 0


def test_autocast_is_that_of_the_forward_pass():
    with torch.autocast("xla", dtype=torch.bfloat16):
        x = torch.ones(2, 4, device="xla", requires_grad=True)
        model, dtypes = torch.nn.Linear(4, 4).to("xla"), []

        def run(x):
            out = model(x)
            dtypes.append(out.dtype)
            return out

        loss = checkpoint.checkpoint(run, x).float().sum()
    loss.backward()
    assert dtypes == [torch.bfloat16] * 2


def test_the_states_of_devices_are_taken_and_given_back():
    x = torch.ones(2, device="xla")
    devices, states = checkpoint.get_device_states(1, x, torch.ones(2), x * 2)
    assert devices == [x.device]
    first = torch.rand(3, device="xla").tolist()
    checkpoint.set_device_states(devices, states)
    assert torch.rand(3, device="xla").tolist() == first


def test_a_tensor_that_is_not_the_devices_and_others_pass_through():
    x = torch.ones(2, requires_grad=True)
    assert checkpoint.CheckpointFunction.apply(lambda x, n: (x * n, n), True, x, 3)[1] == 3
    checkpoint.checkpoint(lambda x: x * 2, x).sum().backward()
    checkpoint.checkpoint(lambda x: x * 2, x, use_reentrant=False).sum().backward()
    assert x.grad.tolist() == [4, 4]


def test_what_cannot_be_checkpointed_is_refused():
    x = torch.ones(2, device="xla", requires_grad=True)
    with pytest.raises(ValueError, match="Unexpected keyword arguments: scale; give them by place"):
        checkpoint.checkpoint(torch.sin, x, scale=2)
    with pytest.raises(RuntimeError, match=r"it needs loss.backward\(\) without `inputs`"):
        torch.autograd.grad(checkpoint.checkpoint(torch.sin, x).sum(), x)
    out = checkpoint.checkpoint(lambda x: x.detach(), x)
    with pytest.raises(RuntimeError, match="none of output has requires_grad=True"):
        out.sum().backward()


def test_a_status_of_ones_own_begins_outside():
    assert not checkpoint.CheckpointStatus().in_chkpt_bwd
    assert isinstance(checkpoint.chkpt_status, checkpoint.CheckpointStatus)
