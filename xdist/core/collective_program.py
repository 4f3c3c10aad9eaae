"""How a program that holds collectives runs: the same function, compiled for its transport.

- host: an ordinary program of this rank's device, in which collectives call into shared memory.
- mesh: one program over the first device of every rank. A local buffer [s0, ...] is this rank's
  shard of a global array [ranks * s0, ...]; a 0-d one travels as [1].
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from torch_xdist import world
from torch_xdist.collectives import inside
from torch_xdist.collectives.mesh import lowering as mesh_lowering
from torch_xdist.collectives.mesh import transport as mesh
from torch_xdist.collectives.mesh.agreement import Call
from torch_xdist.collectives.shared_memory import transport as shared_memory
from torch_xdist.progress import PROGRESS

_UNNUMBERED = np.zeros(1, np.uint32)  # the launch of a program in which nobody meets
# step(donated, kept, floats, ints) -> the results
Step = Callable[[Any, Any, Any, Any], list[jax.Array]]


def compiled(step: Step, calls: Sequence[Call]) -> Step:
    """A function that runs `step`, which holds these collectives, on this process' rank."""
    count = world.world_size()
    if count == 1 or world.transport() == "host":
        return _on_host(step, count)
    return _OnMesh(step, count, calls)


def _on_host(step: Step, count: int) -> Step:
    def traced_step(launch: Any, donated: Any, kept: Any, floats: Any, ints: Any) -> Any:
        with inside.program("host", count, launch) as traced:
            return step(donated, kept, floats, ints), traced.token

    program = jax.jit(traced_step, donate_argnums=(1,))

    def run(donated: Any, kept: Any, floats: Any, ints: Any) -> list[jax.Array]:
        if count == 1:
            return program(_UNNUMBERED, donated, kept, floats, ints)[0]
        with shared_memory.endpoint(world.rank()).launch(PROGRESS.where) as launch:
            # The token that comes back says when the collectives are done.
            results, launch.result = program(launch.operand(), donated, kept, floats, ints)
            return results

    return run


class _OnMesh:
    """The step as one program over the mesh of ranks; built at its first call."""

    def __init__(self, step: Step, count: int, calls: Sequence[Call]) -> None:
        self._step = step
        self._calls = calls
        self._count = count
        self._mesh = mesh.devices()
        self._is_gloo = self._mesh.devices.flat[0].platform == "cpu"
        self._program: Any = None
        self._scalar_results: list[bool] = []

    def __call__(self, donated: Any, kept: Any, floats: Any, ints: Any) -> list[jax.Array]:
        agreement, launches = mesh.joined()
        with launches.next(PROGRESS.where) as launch:
            is_new = self._program is None
            if not self._is_gloo:
                agreement.launch(launch, self._calls, meets=is_new)
            operands = (
                [self._wide(x) for x in donated],
                [self._wide(x) for x in kept],
                # Ranks may differ in their numbers (seeds do), so each is a shard of its own.
                self._wide(jax.numpy.asarray(floats[None])),
                self._wide(jax.numpy.asarray(ints[None])),
            )
            if is_new:
                built = self._built([x.ndim == 0 for x in donated], [x.ndim == 0 for x in kept])
                self._program = built.lower(*operands).compile()
            # Who is here sooner, also for having compiled sooner, waits outside gloo.
            if self._is_gloo:
                agreement.launch(launch, self._calls, meets=True)
            *results, launch.result = self._program(*operands)
        return [self._local(x, flag) for x, flag in zip(results, self._scalar_results)]

    def _built(self, donated_flags: list[bool], kept_flags: list[bool]) -> Any:
        def traced_step(donated: Any, kept: Any, floats: Any, ints: Any) -> list[jax.Array]:
            inner = _narrowed(donated, donated_flags), _narrowed(kept, kept_flags)
            with inside.program("mesh", self._count):
                results = self._step(*inner, floats[0], ints[0])
            self._scalar_results = [x.ndim == 0 for x in results]
            # The last one is nobody's, so it is never donated: it tells when the program is done.
            return [*[x[None] if x.ndim == 0 else x for x in results], jax.numpy.zeros(1)]

        spec = PartitionSpec(mesh_lowering.AXIS)
        sharded = jax.shard_map(
            traced_step, mesh=self._mesh, in_specs=spec, out_specs=spec, check_vma=False
        )
        return jax.jit(sharded, donate_argnums=(0,))

    # Costs some 10 us per leaf. Keeping the pairs would keep them alive: a global array holds its
    # shards.
    def _wide(self, local: jax.Array) -> jax.Array:
        piece = local.reshape(1) if local.ndim == 0 else local
        shape = (self._count * piece.shape[0], *piece.shape[1:])
        sharding = NamedSharding(self._mesh, PartitionSpec(mesh_lowering.AXIS))
        return jax.make_array_from_single_device_arrays(shape, sharding, [piece])

    def _local(self, wide: jax.Array, is_scalar: bool) -> jax.Array:
        piece = wide.addressable_data(0)
        return piece.reshape(()) if is_scalar else piece


def _narrowed(arrays: Sequence[jax.Array], flags: Sequence[bool]) -> list[jax.Array]:
    return [x[0] if flag else x for x, flag in zip(arrays, flags)]
