"""Names for checkpoint files."""

from torch_xdist.torch_xla_compat.checkpoint_tagger import CheckpointTagger

__all__ = ["CheckpointTagger"]
