"""Several ranks: collectives as rows of the trace, torch.distributed, meetings on the host."""
