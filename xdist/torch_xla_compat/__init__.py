"""What scripts call by torch_xla's names and no other part needs."""
