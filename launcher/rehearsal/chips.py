"""What a chip has, by generation.

Source: Google Cloud's pages, docs.cloud.google.com/tpu/docs/v4, v5e, v5p and v6e: peak bfloat16
compute, HBM capacity and bandwidth, and half of the bidirectional interconnect bandwidth per chip
(400, 1200 and 800 GB/s). Of a v4 the page has none, but all-reduce bandwidth of a pod (1.1 PB/s by
4096 chips), which on the v5e and v6e comes to that half. What of the HBM programs may have is what
libtpu 0.0.42.1 says when it refuses one.
"""

from typing import NamedTuple


class Chip(NamedTuple):
    """A device of JAX's: a chip, or one of the two cores of a v4.

    Attributes:
        flops: bfloat16 operations a second.
        hbm_bytes: of memory; usable_bytes: what programs may have of it.
        hbm_rate, link_rate: bytes a second from memory, and to all neighbours together.
    """

    flops: float
    hbm_bytes: float
    usable_bytes: float
    hbm_rate: float
    link_rate: float


_GIB = 1 << 30
CHIPS = {
    "v4": Chip(275e12 / 2, 16 * _GIB, 15.25 * _GIB, 1200e9 / 2, 1.1e15 / 4096 / 2),
    "v5e": Chip(197e12, 16 * _GIB, 15.75 * _GIB, 819e9, 200e9),
    "v5p": Chip(459e12, 95 * _GIB, 95.74 * _GIB, 2765e9, 600e9),
    "v6e": Chip(918e12, 32 * _GIB, 31.25 * _GIB, 1638e9, 400e9),
}
