"""What exported programs are made of, once for all tests of a run."""

import pytest
import torch

import torch_xla  # noqa: F401 the device
from torch_xdist.export.programs import exported_program_to_stablehlo


class Small(torch.nn.Module):
    """A layer, a constant of its own, an argument it does not read."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(3, 4)

    def forward(self, x, unread):
        return torch.relu(self.layer(1.0 - x)) / torch.tensor(3) - 5.0, x


def exported(model, args, **options):
    return torch.export.export(model.eval(), args, **options)


@pytest.fixture(scope="session")
def small():
    """(the model, its arguments, what torch exports of it)"""
    model, args = Small(), (torch.arange(6.0).reshape(2, 3), torch.zeros(2))
    return model, args, exported(model, args)


@pytest.fixture(scope="session")
def stablehlo(small):
    return exported_program_to_stablehlo(small[2])
