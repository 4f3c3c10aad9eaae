"""Ways to write a training step: mixed precision, step blocks, eager mode, torch.compile."""
