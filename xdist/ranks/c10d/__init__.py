"""torch.distributed on the xla device: the backend "xla", and what stands on it in torch.

In: the calls of c10d, of its functional collectives, of DTensor and of torch's FSDP. Out: rows of
the trace for device tensors, messages for CPU tensors. `process_group` is the backend.
"""
