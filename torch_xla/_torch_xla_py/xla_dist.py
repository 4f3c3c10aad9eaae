"""The name of 2019 for `torch_xla.distributed.xla_dist`."""

from torch_xla.distributed.xla_dist import *  # noqa: F403
