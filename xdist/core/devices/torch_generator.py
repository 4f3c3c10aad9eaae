"""`torch.Generator("xla")`: generators users pass to random operators.

torch makes generators in C++ and has none for xla, so `torch.Generator` is replaced by a class of
the same name that makes torch's own for every other device. Underneath ours is one of the CPU:
its state is the state, and every random row of the device draws its seed from it.
"""

from typing import Any

import torch

from torch_xdist.releases import patches

TorchGenerator = torch._C.Generator


def drawn_from(generator: torch.Generator) -> tuple[int, int]:
    """The (seed, counter) of one random row; advances the generator.

    Generators pass through C++ and arrive as other objects, so nothing can be remembered of them.
    """
    seed = torch.empty((), dtype=torch.int64, device="cpu").random_(2**31, generator=generator)
    return int(seed), 0


class _EveryGenerator(type(TorchGenerator)):  # type: ignore[misc]
    """isinstance(g, torch.Generator) stays true for the generators torch makes."""

    def __instancecheck__(cls, value: Any) -> bool:
        return issubclass(type(value), TorchGenerator)


class XlaGenerator(TorchGenerator, metaclass=_EveryGenerator):
    """`torch.Generator(device)`: torch's own, or for xla devices one of ours."""

    def __new__(cls, device: Any = "cpu") -> Any:
        wanted = torch.device(device)
        if wanted.type != "xla":
            return TorchGenerator(wanted)
        generator = super().__new__(cls, torch.device("cpu"))  # type: ignore[call-arg]
        generator._index = wanted.index or 0  # type: ignore[attr-defined]
        return generator

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The xla device it was made for."""
        return torch.device("xla", self._index)  # type: ignore[attr-defined]


XlaGenerator.__name__ = XlaGenerator.__qualname__ = "Generator"
XlaGenerator.__module__ = "torch"


def register() -> None:
    """Make `torch.Generator` know the device."""
    patches.replace("torch.Generator", XlaGenerator)
