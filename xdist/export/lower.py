"""Lowering a graph to StableHLO, by `jax.export`, which keeps what JAX needs to call it again."""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
from jax.export import DisabledSafetyCheck

from torch_xdist import settings
from torch_xdist.export import dynamic, modules
from torch_xdist.export.custom_calls import TARGETS
from torch_xdist.export.graph import Graph


@dataclass(frozen=True, slots=True)
class Lowered:
    """A graph as StableHLO.

    Attributes:
        module: its text with all locations.
        has_labels: whether places of it were given texts.
    """

    module: str
    has_labels: bool

    @property
    def text(self) -> str:
        """The module for readers; with locations where they were asked for."""
        return modules.text_of(
            self.module, with_locations=self.has_labels or settings.hlo_locations()
        )

    @property
    def bytecode(self) -> bytes:
        """The module as a portable artifact."""
        return modules.bytecode_of(self.module)


def lower(graph: Graph, symbols: Sequence[dict[int, str]], device: jax.Device) -> Lowered:
    """StableHLO of a graph.

    Args:
        symbols: for each leaf the names of the sizes that stay open, by dim.
        device: whose platform its operations are lowered for.
    """
    of_numbers: list[dict[int, str]] = [{} for _ in graph.numbers]
    parameters = dynamic.with_symbols(graph.parameters(), [*symbols, *of_numbers])
    checks = [DisabledSafetyCheck.platform()]
    checks += map(DisabledSafetyCheck.custom_call, sorted(TARGETS))
    function = jax.jit(graph.function(), keep_unused=True)
    exported = jax.export.export(function, platforms=[_platform(device)], disabled_checks=checks)(
        *parameters
    )
    return Lowered(modules.tidied(str(exported.mlir_module())), bool(graph.labels))


def _platform(device: jax.Device) -> str:
    """JAX's name of a device's platform, as `jax.export` wants it."""
    return {"gpu": "cuda"}.get(device.platform, device.platform)
