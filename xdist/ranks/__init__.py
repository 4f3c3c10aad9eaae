"""Several ranks: collectives as rows of the trace, and what training jobs build on them.

In: device tensors, on one rank of several. Out: rows that exchange data with the other ranks
(`collective_ops`), and messages outside of programs (`rendezvous`, `tensor_messages`). On these
stand `gradients`, `zero`, torch_xla's `fsdp`, and torch.distributed's backend (`c10d`).
"""
