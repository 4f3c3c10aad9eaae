"""The backend `openxla` of torch.compile."""

from torch_xla._dynamo import config

__all__ = ["config"]
