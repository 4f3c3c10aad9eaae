"""`nn.GRU` by torch_xla's name is torch's."""

import copy
import pickle

import torch
from torch import nn

import torch_xla  # noqa: F401
from torch_xla.experimental.gru import GRU


def test_nn_gru_is_that_class_and_computes_what_torchs_does():
    assert nn.GRU is GRU and issubclass(GRU, GRU._orig)
    torch.manual_seed(0)
    module = nn.GRU(3, 4, num_layers=2, batch_first=True)
    plain = GRU._orig(3, 4, num_layers=2, batch_first=True)
    plain.load_state_dict(module.state_dict(), strict=True)
    there, x = copy.deepcopy(module).to("xla"), torch.randn(2, 5, 3)
    expected, got = plain(x), there(x.to("xla"))
    for one, other in zip(expected, got):
        torch.testing.assert_close(other.detach().cpu(), one.detach())
    (expected[0].sum() + expected[1].sum()).backward()
    (got[0].sum() + got[1].sum()).backward()
    for one, other in zip(plain.parameters(), there.parameters()):
        torch.testing.assert_close(other.grad.cpu(), one.grad)
    assert type(pickle.loads(pickle.dumps(module))) is GRU


def test_a_bidirectional_one_is_torchs_own_class():
    assert type(nn.GRU(2, 2, bidirectional=True)) is GRU._orig
