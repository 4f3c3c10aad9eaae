"""The name of 2019 for `torch_xla.debug.metrics_saver`."""

from torch_xla.debug.metrics_saver import *  # noqa: F403
