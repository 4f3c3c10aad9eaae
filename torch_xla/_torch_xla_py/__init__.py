"""The module names of 2019: `import torch_xla_py.xla_model as xm` and its siblings."""

from torch_xdist.torch_xla_compat.deprecation import old_module

old_module("torch_xla_py", "torch_xla.core.xla_model and its siblings")
