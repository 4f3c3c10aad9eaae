"""States of optimizers before the first step, so that a checkpoint has a place to go."""

import numpy as np
import torch
from spmd_process import SpmdProcess

import torch_xla
import torch_xla.distributed.spmd as xs
from torch_xla.experimental.distributed_checkpoint import prime_optimizer

four = SpmdProcess(4)


@four
def test_states_exist_and_are_sharded_as_their_parameters():
    layer = torch.nn.Linear(4, 8).to("xla")
    mesh = xs.Mesh(np.arange(4), (4,))
    xs.mark_sharding(layer.weight, mesh, (0, None))
    before = {name: p.detach().cpu() for name, p in layer.named_parameters()}
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.1)
    assert prime_optimizer(optimizer) is optimizer
    state = optimizer.state[layer.weight]
    assert state["exp_avg"].shape == (8, 4) and not state["exp_avg"].cpu().any()
    spec_of = torch_xla._XLAC._get_xla_sharding_spec
    assert spec_of(layer.weight.grad) == spec_of(layer.weight) == "{devices=[4,1]0,1,2,3}"
    assert spec_of(state["exp_avg_sq"]) == spec_of(layer.weight)
    for name, parameter in layer.named_parameters():
        assert torch.equal(parameter.detach().cpu(), before[name])


def test_frozen_parameters_have_no_state():
    layer = torch.nn.Linear(2, 2).to("xla")
    layer.bias.requires_grad_(False)
    optimizer = prime_optimizer(torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9))
    assert layer.bias.grad is None and layer.bias not in optimizer.state
    assert not optimizer.state[layer.weight]["momentum_buffer"].cpu().any()
