"""The name of 2019 for `torch_xla.utils.utils`."""

from torch_xla.utils.utils import *  # noqa: F403
