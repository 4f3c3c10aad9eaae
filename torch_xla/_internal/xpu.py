"""Intel's GPUs: not here."""

from torch_xdist.torch_xla_compat.not_here import refuse

refuse(__name__)
