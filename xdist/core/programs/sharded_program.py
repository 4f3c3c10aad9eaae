"""How a program of the logical device is compiled and called: one program over all its devices.

Its operands lie as their buffers do, its results as the user said for the values they belong to;
where nothing was said XLA decides. XLA's partitioner does the rest, and inserts the collectives.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from torch_xdist import metrics, platforms, world
from torch_xdist.collectives import inside
from torch_xdist.core.programs import compile_options
from torch_xdist.core.programs.jax_internals import Location, callable_of, compiled
from torch_xdist.core.programs.locations import located
from torch_xdist.core.sharding import together
from torch_xdist.core.sharding.arrays import Parts
from torch_xdist.core.sharding.layout import Buffer, Layout, padded, unpadded
from torch_xdist.core.sharding.tiling import Tiling
from torch_xdist.progress import PROGRESS

# Said of the values that a program is run with.
_SAME = "values from the host, which every process must have alike, with the checksum"
Shape = tuple[int, ...]
# The row that says how its operand shall lie.
MARK = "xla.mark_sharding"


class Placement(NamedTuple):
    """What a sharded program is compiled for, beside its rows.

    Attributes:
        leaves: how each leaf's buffer lies: its sharding, its shape with padding, and whether it is
            the stacked parts of a tensor that is sharded by hand.
        results: how the user wants each result; None where XLA decides.
    """

    leaves: tuple[tuple[Any, Shape, bool], ...]
    results: tuple[Tiling | None, ...]


def placement_of(
    buffers: Sequence[Buffer], layout: Layout, results: Sequence[Tiling | None]
) -> tuple[list[jax.Array], Placement]:
    """The buffers on all devices, and what a program of them is compiled for."""
    placed = [*map(layout.placed, buffers)]
    leaves = tuple((x.sharding, x.shape, isinstance(b, Parts)) for x, b in zip(placed, buffers))
    return placed, Placement(leaves, tuple(results))


class OnLayout:
    """A program of the logical device.

    Args:
        step: step(donated, kept, floats, ints) -> results, on arrays without padding.
        donated, kept: the places of these among the placement's leaves.
        shapes: of the leaves, and of the results, without padding.
        locations: where the rows were recorded, by slot.
        parts: the places of the results that are stacked parts.
        told: what other processes are told of the program.
    """

    def __init__(
        self,
        step: Callable[..., Any],
        layout: Layout,
        placement: Placement,
        donated: Sequence[int],
        kept: Sequence[int],
        shapes: tuple[Sequence[Shape], Sequence[Shape]],
        locations: Mapping[int, Location],
        parts: Sequence[int] = (),
        told: str = "",
    ) -> None:
        of_leaves, of_results = shapes
        self._layout = layout
        self._choices = platforms.of(layout.devices[0].platform)
        self._parts = parts
        self._locations = locations
        self._told = told

        def inner(given: Any, held: Any, floats: Any, ints: Any) -> list[Any]:
            given = [unpadded(x, of_leaves[place]) for x, place in zip(given, donated)]
            held = [unpadded(x, of_leaves[place]) for x, place in zip(held, kept)]
            with inside.program("host", 1):
                results = step(given, held, floats, ints)
            return [
                x if tiling is None else padded(x, tiling.padded_shape(shape))
                for x, tiling, shape in zip(results, placement.results, of_results)
            ]

        where = [sharding for sharding, *_ in placement.leaves]
        everywhere = layout.replicated
        self._function: Any = jax.jit(
            inner,
            donate_argnums=(0,),
            in_shardings=(
                tuple(where[place] for place in donated),
                tuple(where[place] for place in kept),
                everywhere,
                everywhere,
            ),
            out_shardings=[t and layout.sharding(t) for t in placement.results],
        )
        self._compiled: Any = None

    def lower(self, signature: Sequence[Any]) -> Any:
        """The program for arguments of these shapes, as JAX lowers it."""
        return self._lowered(self._function.trace(*signature))

    def _lowered(self, traced: Any) -> Any:
        return located(traced.lower(), self._locations)

    def compile(self, signature: Sequence[Any], key: str = "") -> Callable[..., list[jax.Array]]:
        """Compile it, once; returns what runs it. JAX's cache alone keeps it, as in OnMesh."""
        metrics.count("LoweredProgram")
        traced = self._function.trace(*signature)
        options = compile_options.options_on_mesh(traced.jaxpr, self._choices)
        self._compiled = compiled(self._lowered(traced), options)
        self._function = None  # As in OnDevice.
        run = callable_of(self._compiled)
        if world.shares_device():
            run = self._together(run, self._layout)
        return self._wrapped(run) if self._parts else run

    def _together(self, run: Callable[..., list[Any]], layout: Layout) -> Callable[..., list[Any]]:
        """What runs it when the other processes are about to as well."""
        is_new = True

        def run_together(*arguments: Any) -> list[Any]:
            nonlocal is_new
            donated, kept, *_ = arguments
            values = f"{_SAME} {layout.sample_of([*donated, *kept]):x}"
            calls = [(self._told, PROGRESS.where), (values, PROGRESS.where)]
            with together.meeting(calls, is_new=is_new) as launch:
                results = run(*arguments)
                launch.result = results[0] if results else None
            is_new = False
            return results

        return run_together

    def _wrapped(self, run: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        """What runs it, and hands out its stacked parts as such."""

        def wrapped(*arguments: Any) -> list[Any]:
            results = run(*arguments)
            for place in self._parts:
                results[place] = Parts(results[place])
            return results

        return wrapped

    def memory(self) -> Any:
        """XLA's account of the bytes a run needs, on each device."""
        return self._compiled.memory_analysis()

    def text(self) -> str:
        """The program as XLA compiled it, in HLO."""
        return str(self._compiled.as_text())
