"""What training scripts import from torch_xla.test."""
