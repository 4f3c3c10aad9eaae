"""The name of 2019 for `torch_xla.core.xla_env_vars`."""

from torch_xla.core.xla_env_vars import *  # noqa: F403
