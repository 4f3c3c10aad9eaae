"""The name of 2019 for `torch_xla.utils.keyd_queue`."""

from torch_xla.utils.keyd_queue import *  # noqa: F403
