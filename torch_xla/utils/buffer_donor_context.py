"""Which buffers programs may write into."""

from torch_xdist.torch_xla_compat.buffer_donation import alias_with_buffer_donor_config

__all__ = ["alias_with_buffer_donor_config"]
