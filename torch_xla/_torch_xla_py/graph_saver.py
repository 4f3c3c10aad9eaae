"""The name of 2019 for `torch_xla.debug.graph_saver`."""

from torch_xla.debug.graph_saver import *  # noqa: F403
