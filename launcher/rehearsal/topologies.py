"""Names of slices as Google Cloud has them, and as the TPU compiler does. Pure.

"v5e-256" is 256 chips, "v5p-16" is 16 TensorCores, so 8 chips. Where a number may have several
shapes, one is chosen here, and another is asked for by name.
"""

import math
import re
from typing import NamedTuple

from torch_xdist.launcher.facts.errors import UsageError

_FLAT = {
    1: "2x2", 4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8", 128: "8x16", 256: "16x16",
}  # fmt: skip
_CUBES = {
    4: "2x2x1", 8: "2x2x2", 16: "2x2x4", 32: "2x4x4", 64: "4x4x4", 128: "4x4x8", 256: "4x8x8",
    512: "8x8x8", 1024: "8x8x16", 2048: "8x16x16",
}  # fmt: skip
# By generation: chips to shapes, and what the number in a name counts per chip.
_KINDS = {"v5e": (_FLAT, 1), "v6e": (_FLAT, 1), "v5p": (_CUBES, 2), "v4": (_CUBES, 2)}
_OTHER_NAMES = {"v5litepod": "v5e", "v5lite": "v5e"}
_NAME = re.compile(r"(?P<kind>v\d+\w*?)(?:-(?P<number>\d+)|:(?P<shape>\d+(?:x\d+)+))")


class Slice(NamedTuple):
    """What to compile for.

    Attributes:
        name: as the user wrote it.
        kind: the generation, a key of `chips.CHIPS`.
        described: libtpu's name.
        devices: how many take part in each slice; a v4's chip is two.
        slices: how many slices there are.
    """

    name: str
    kind: str
    described: str
    devices: int
    slices: int = 1

    @property
    def world_size(self) -> int:
        """How many ranks the job has."""
        return self.devices * self.slices

    @property
    def title(self) -> str:
        """In words."""
        return self.name if self.slices == 1 else f"{self.slices} x {self.name}"


def read(text: str, slices: int = 1) -> list[Slice]:
    """The slices of `--topology`, names separated by commas.

    Raises UsageError for a name or a size that there is not.
    """
    return [_read(name.strip(), slices) for name in text.split(",")]


def _read(name: str, slices: int) -> Slice:
    match = _NAME.fullmatch(name)
    kind = _OTHER_NAMES.get(match["kind"], match["kind"]) if match else ""
    if match is None or kind not in _KINDS:
        raise UsageError(
            f"--topology {name!r}: a name such as v5e-256, v6e-32, v5p-16 or v4-16 is needed, or"
            " the shape of a slice, v5e:16x16"
        )
    shapes, per_chip = _KINDS[kind]
    # Of a v4's cores each is a device to JAX's compiler.
    cores = 2 if kind == "v4" else 1
    if match["shape"]:
        count = math.prod(int(size) for size in match["shape"].split("x"))
        return Slice(name, kind, f"{kind}:{match['shape']}", count * cores, slices)
    chips, rest = divmod(int(match["number"]), per_chip)
    if rest or chips not in shapes:
        sizes = ", ".join(f"{kind}-{chips * per_chip}" for chips in shapes)
        raise UsageError(f"--topology {name!r}: there is no such slice; there are {sizes}")
    return Slice(name, kind, f"{kind}:{shapes[chips]}", chips * cores, slices)
