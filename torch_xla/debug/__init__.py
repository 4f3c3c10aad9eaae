"""Metrics, profiles and dumps, by the names of torch_xla.debug."""
