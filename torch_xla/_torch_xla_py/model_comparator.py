"""The name of 2019 for `torch_xla.debug.model_comparator`."""

from torch_xla.debug.model_comparator import *  # noqa: F403
