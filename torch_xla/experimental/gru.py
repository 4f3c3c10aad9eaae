"""`nn.GRU` under torch_xla's name of it."""

from torch_xdist.training.gru import GRU
from torch_xdist.training.scan import scan

__all__ = ["GRU", "scan"]
