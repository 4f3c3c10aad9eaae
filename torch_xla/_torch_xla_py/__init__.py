"""The module names of 2019: `import torch_xla_py.xla_model as xm` and its siblings."""
