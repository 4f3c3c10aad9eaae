"""Ways in by the names of torch_xla and its old versions.

In reading order: `pjrt` (ranks by the private names of its runtime) and `xla_dist` (its launcher
for TPU pods).
"""
