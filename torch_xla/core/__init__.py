"""The device, by the names of torch_xla.core."""
