"""Lowering a graph to StableHLO, by `jax.export`, which keeps what JAX needs to call it again."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.export import DisabledSafetyCheck

from torch_xdist import platforms, settings
from torch_xdist.export import dynamic, modules
from torch_xdist.export.custom_calls import TARGETS
from torch_xdist.export.graph import Graph
from torch_xdist.export.quantized import MARKS, with_types


@dataclass(frozen=True, slots=True)
class Lowered:
    """A graph as StableHLO.

    Attributes:
        module: its text with all locations.
        for_readers: the same, where what is quantized is still to be seen.
        has_labels: whether places of it were given texts.
    """

    module: str
    for_readers: str
    has_labels: bool

    @property
    def text(self) -> str:
        """The module for readers; with locations where they were asked for."""
        with_locations = self.has_labels or settings.hlo_locations()
        text = modules.text_of(self.for_readers, with_locations=with_locations)
        return text if self.for_readers is self.module else with_types(text)

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
    module = _module(graph.function(), parameters, device)
    for_readers = module
    if graph.has_quantized:
        for_readers = _module(graph.function(for_readers=True), parameters, device)
    return Lowered(module, for_readers, bool(graph.labels))


def _module(
    function: Callable[..., Any], parameters: Sequence[jax.ShapeDtypeStruct], device: jax.Device
) -> str:
    targets = sorted({*TARGETS, *MARKS})
    checks = [DisabledSafetyCheck.platform(), *map(DisabledSafetyCheck.custom_call, targets)]
    exported = jax.export.export(
        jax.jit(function, keep_unused=True),
        platforms=[platforms.of(device.platform).name],
        disabled_checks=checks,
    )(*parameters)
    return modules.tidied(str(exported.mlir_module()))
