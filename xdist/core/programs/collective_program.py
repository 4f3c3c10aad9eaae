"""How a program is compiled and called, by where its ranks meet.

- no collectives: an ordinary program of this rank's device.
- host, hosts: the same, in which collectives call into shared memory (and over the network).
- mesh: one program over the first device of every rank. A local buffer [s0, ...] is this rank's
  shard of a global array [ranks * s0, ...]; a 0-d one travels as [1].
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from torch_xdist import metrics, platforms, world
from torch_xdist.collectives import inside
from torch_xdist.collectives.mesh import lowering as mesh_lowering
from torch_xdist.collectives.mesh import transport as mesh
from torch_xdist.collectives.mesh.agreement import Call
from torch_xdist.collectives.shared_memory import transport as shared_memory
from torch_xdist.core.kept import on_disk
from torch_xdist.core.programs import compile_options, long_reductions
from torch_xdist.core.programs.jax_internals import (
    Direct,
    Location,
    alias,
    callable_of,
    compiled,
    direct_call,
)
from torch_xdist.core.programs.locations import located
from torch_xdist.progress import PROGRESS

_UNNUMBERED = np.zeros(1, np.uint32)  # the launch of a program in which nobody meets
# step(donated, kept, floats, ints) -> the results
Step = Callable[[Any, Any, Any, Any], Any]


def executable(
    step: Step,
    calls: Sequence[Call],
    device: jax.Device,
    locations: Mapping[int, Location],
    peers: Sequence[jax.Device] = (),
    aliases: Mapping[int, int] = MappingProxyType({}),
) -> "OnDevice | OnMesh":
    """How to compile and run `step`, which holds these collectives, on this process' rank.

    Args:
        peers: the first device of every rank, where they are not those of this job.
        aliases: by places, over which of the donated arrays which result is written.
    """
    if not calls:
        return OnDevice(step, device, locations, aliases=aliases)
    if not is_on_mesh(peers):
        return OnHost(step, device, world.world_size(), locations)
    return OnMesh(step, calls, locations, mesh.over(peers) if peers else mesh.devices())


def is_on_mesh(peers: Sequence[jax.Device]) -> bool:
    """Whether this process' programs with collectives run over the devices of all ranks."""
    return world.world_size() > 1 and bool(peers or world.transport() == "mesh")


class OnDevice:
    """A program of one device."""

    def __init__(
        self,
        step: Callable[..., Any],
        device: jax.Device,
        locations: Mapping[int, Location],
        donated: int = 0,
        aliases: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        self._locations = locations
        self._aliases = aliases
        # Said outright, or JAX would compile again where a leaf was not put there by name.
        there = SingleDeviceSharding(device)
        self._device = device
        self._choices = platforms.of(device.platform)
        self._function: Any = jax.jit(
            step, donate_argnums=(donated,), in_shardings=there, out_shardings=there
        )
        self._compiled: Any = None
        # How it runs without JAX's look at each argument, once it is compiled.
        self.direct: Direct | None = None

    def lower(self, signature: Sequence[Any]) -> Any:
        """The program for arguments of these shapes, as JAX lowers it."""
        return self._lowered(self._traced(signature))

    def compile(self, signature: Sequence[Any], key: str = "") -> Callable[..., list[jax.Array]]:
        """Compile it, once; returns what runs it.

        Args:
            key: under which earlier runs may have left it, or "".
        """
        with on_disk.kept(key, self._device) as kept:
            if kept.found is None:
                metrics.count("LoweredProgram")
                traced = self._traced(signature)
                options = compile_options.options(traced.jaxpr, self._choices)
                kept.made = compiled(self._lowered(traced), options)
            self._compiled = kept.found or kept.made
        # JAX keeps what it traced and lowered, 1.3 MB of a tiny program, as long as the function.
        self._function = None
        self.direct = direct_call(self._compiled, self._device)
        return callable_of(self._compiled)

    def _traced(self, signature: Sequence[Any]) -> Any:
        return self._function.trace(*signature)

    def _lowered(self, traced: Any) -> Any:
        lowered = located(traced.lower(), self._locations)
        if self._choices.is_host:
            long_reductions.by_xla(lowered)
        if self._aliases:
            alias(lowered, self._aliases)
        return lowered

    def memory(self) -> Any:
        """XLA's account of the bytes a run needs."""
        return self._compiled.memory_analysis()

    def text(self) -> str:
        """The program as XLA compiled it, in HLO."""
        return str(self._compiled.as_text())


class OnHost(OnDevice):
    """A program whose collectives call into shared memory."""

    def __init__(
        self, step: Step, device: jax.Device, count: int, locations: Mapping[int, Location]
    ) -> None:
        def traced_step(launch: Any, donated: Any, kept: Any, floats: Any, ints: Any) -> Any:
            with inside.program("host", count, launch) as traced:
                return step(donated, kept, floats, ints), traced.token

        super().__init__(traced_step, device, locations, donated=1)
        self._count = count

    def _traced(self, signature: Sequence[Any]) -> Any:
        return super()._traced((_UNNUMBERED, *signature))

    def compile(self, signature: Sequence[Any], key: str = "") -> Callable[..., list[jax.Array]]:
        """Compile it; what runs it says which launch of this rank it is."""
        program: Any = super().compile(signature, key)
        self.direct = None  # It takes more, and returns more, than a program alone.

        def run(donated: Any, kept: Any, floats: Any, ints: Any) -> list[jax.Array]:
            if self._count == 1:
                return program(_UNNUMBERED, donated, kept, floats, ints)[0]
            with shared_memory.endpoint(world.rank()).launch(PROGRESS.where) as launch:
                # The token that comes back says when the collectives are done.
                results, launch.result = program(launch.operand(), donated, kept, floats, ints)
                return results

        return run


class OnMesh:
    """The step as one program over the mesh of ranks."""

    def __init__(
        self, step: Step, calls: Sequence[Call], locations: Mapping[int, Location], ranks: Mesh
    ) -> None:
        self._step: Step | None = step
        self._locations = locations
        self._calls = calls
        self._count = ranks.size
        self._mesh = ranks
        self._sharding = NamedSharding(self._mesh, PartitionSpec(mesh_lowering.AXIS))
        self._choices = platforms.of(ranks.devices.flat[0].platform)
        self._is_new = True
        self._scalar_results: list[bool] = []
        self._compiled: Any = None

    def lower(self, signature: Sequence[Any]) -> Any:
        """The program for local arguments of these shapes, as JAX lowers it."""
        return self._lowered(self._traced(signature))

    def _traced(self, signature: Sequence[Any]) -> Any:
        donated, kept, floats, ints = signature
        flags = [x.ndim == 0 for x in donated], [x.ndim == 0 for x in kept]
        # Ranks may differ in their numbers (seeds do), so each is a shard of its own.
        rows = [jax.ShapeDtypeStruct((1, *x.shape), x.dtype) for x in (floats, ints)]
        wide = jax.tree.map(self._wide_type, (list(donated), list(kept), *rows))
        return self._built(*flags).trace(*wide)

    def _lowered(self, traced: Any) -> Any:
        return located(traced.lower(), self._locations)

    def compile(self, signature: Sequence[Any], key: str = "") -> Callable[..., list[jax.Array]]:
        """Compile it; returns what runs it. JAX's cache alone keeps it, whatever the key is."""
        metrics.count("LoweredProgram")
        traced = self._traced(signature)
        options = compile_options.options_on_mesh(traced.jaxpr, self._choices)
        self._compiled = compiled(self._lowered(traced), options)
        self._step = None  # As in OnDevice.
        return self._run

    def memory(self) -> Any:
        """XLA's account of the bytes a run needs."""
        return self._compiled.memory_analysis()

    def text(self) -> str:
        """The program as XLA compiled it, in HLO."""
        return str(self._compiled.as_text())

    def _run(self, donated: Any, kept: Any, floats: Any, ints: Any) -> list[jax.Array]:
        agreement, launches = mesh.joined()
        with launches.next(PROGRESS.where) as launch:
            # On the CPU, who is here sooner waits outside gloo, which gives up on a late rank.
            agreement.launch(launch, self._calls, waits=self._is_new or self._choices.waits_outside)
            self._is_new = False
            *results, launch.result = self._compiled(
                [self._wide(x) for x in donated],
                [self._wide(x) for x in kept],
                self._wide(jax.numpy.asarray(floats[None])),
                self._wide(jax.numpy.asarray(ints[None])),
            )
        return [self._local(x, flag) for x, flag in zip(results, self._scalar_results)]

    def _built(self, donated_flags: list[bool], kept_flags: list[bool]) -> Any:
        step: Any = self._step

        def traced_step(donated: Any, kept: Any, floats: Any, ints: Any) -> list[jax.Array]:
            inner = _narrowed(donated, donated_flags), _narrowed(kept, kept_flags)
            with inside.program("mesh", self._count, joins=not self._choices.combines):
                results = step(*inner, floats[0], ints[0])
            self._scalar_results = [x.ndim == 0 for x in results]
            # The last one is nobody's, so it is never donated: it tells when the program is done.
            return [*[x[None] if x.ndim == 0 else x for x in results], jax.numpy.zeros(1)]

        spec = PartitionSpec(mesh_lowering.AXIS)
        sharded = jax.shard_map(
            traced_step, mesh=self._mesh, in_specs=spec, out_specs=spec, check_vma=False
        )
        # Said outright, or a TPU lays results out as if each chip had all of them: in another way
        # than the arguments, whose memory is then not theirs.
        return jax.jit(sharded, donate_argnums=(0,), out_shardings=self._sharding)

    def _wide_type(self, local: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        first, *rest = local.shape or (1,)
        shape = (self._count * first, *rest)
        return jax.ShapeDtypeStruct(shape, local.dtype, sharding=self._sharding)

    # Costs some 10 us per leaf. Keeping the pairs would keep them alive: a global array holds its
    # shards.
    def _wide(self, local: jax.Array) -> jax.Array:
        piece = local.reshape(1) if local.ndim == 0 else local
        shape = (self._count * piece.shape[0], *piece.shape[1:])
        return jax.make_array_from_single_device_arrays(shape, self._sharding, [piece])

    def _local(self, wide: jax.Array, is_scalar: bool) -> jax.Array:
        piece = wide.addressable_data(0)
        return piece.reshape(()) if is_scalar else piece


def _narrowed(arrays: Sequence[jax.Array], flags: Sequence[bool]) -> list[jax.Array]:
    return [x[0] if flag else x for x, flag in zip(arrays, flags)]
