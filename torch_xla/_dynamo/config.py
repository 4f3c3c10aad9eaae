"""The switches of the bridge."""

import sys

from torch_xdist.dynamo import config

# The module itself, for scripts set its switches.
sys.modules[__name__] = config
