"""Processes, loaders and collectives, by the names of torch_xla.distributed."""
