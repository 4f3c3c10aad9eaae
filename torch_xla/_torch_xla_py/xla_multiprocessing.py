"""The name of 2019 for `torch_xla.distributed.xla_multiprocessing`."""

from torch_xla.distributed.xla_multiprocessing import *  # noqa: F403
