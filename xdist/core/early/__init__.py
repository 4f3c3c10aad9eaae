"""Results that the host reads while their program still runs: the loss of a training step."""
