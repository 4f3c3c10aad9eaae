"""The name of 2019 for `torch_xla.core.xla_model`."""

from torch_xla.core.xla_model import *  # noqa: F403
