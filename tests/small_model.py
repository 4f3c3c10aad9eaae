"""A small classifier and its data, for tests that compare training with eager torch."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    """[n, 6] to log probabilities [n, 3]."""

    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(6, 8)
        self.out = nn.Linear(8, 3)

    def forward(self, x):
        return F.log_softmax(self.out(F.relu(self.hidden(x))), dim=1)


def make_batches():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(24, 6, generator=generator)
    return DataLoader(TensorDataset(x, x[:, :3].argmax(dim=1)), batch_size=4)


def losses_on_cpu(batches):
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for data, target in batches:
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
