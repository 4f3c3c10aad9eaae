"""Programs that may overwrite buffers that were marked for it."""

from torch_xdist.dynamo.donation import alias_with_buffer_donor_config

__all__ = ["alias_with_buffer_donor_config"]
