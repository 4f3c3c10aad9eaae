"""What scripts import beside the device, by the names of torch_xla.utils."""
