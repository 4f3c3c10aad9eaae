"""`spawn` on the nodes of a Ray cluster, for a script or notebook that uses Ray already."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch_xdist.launcher.facts import devices, payload, settings
from torch_xdist.launcher.facts.errors import NestedSpawnError, UsageError
from torch_xdist.launcher.on_ray.request import hosts_of, resources_of, way_command
from torch_xdist.launcher.ways_in import spawn
from torch_xdist.launcher.ways_in.handle import Handle


def spawn_on_ray(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    *,
    nodes: int,
    nprocs: int | None = None,
    gpus_per_node: int | None = None,
    resources: Mapping[str, float] | None = None,
    address: str = "",
    python: str = "",
    env: Mapping[str, str] | None = None,
    join: bool = True,
) -> "list[Any] | Handle":
    """Run `fn(rank, *args)` in `nprocs` processes on each of `nodes` nodes of a Ray cluster.

    As `spawn`, with the hosts of `xla-run --ray`: the function and its arguments travel by value,
    and all ranks' results come back. Ray may be in use by the caller, which stays as it is.

    Args:
        nprocs: ranks of each node; None: one for each of `gpus_per_node`.
        resources: of each node, over a CPU for each rank and its GPUs: {"CPU": 8, "TPU": 4}.
        address: HOST:PORT; "": RAY_ADDRESS, or the cluster of this machine.
        python: the interpreter on the nodes; "": that of Ray's workers.
        env: variables for the ranks.
        join: wait for the end; else a `Handle` comes back at once.

    Raises:
        Exception: what a rank raised, with its traceback there as the cause.
        RankFailedError: a rank failed otherwise, or its node was lost: see its `exit_code`.
        PreflightError: Ray is not installed, or the cluster has another release.
        HostError: no cluster is there, or it cannot start an agent.
        RendezvousError: Ray found no place in time.
        PayloadError: something cannot be pickled; raised before anything starts.
        NestedSpawnError: called inside a rank.
        UsageError: `nodes` and `nprocs` cannot be right.
    """
    spawn.pass_exit_codes_on()
    environ = settings.environment()
    if settings.text(environ, "XLA_RUN_TASK"):
        raise NestedSpawnError(
            f"spawn_on_ray: this is rank {settings.text(environ, 'RANK')} of a job already; a "
            "rank cannot spawn ranks: call it in the script that starts the job"
        )
    ranks = nprocs or gpus_per_node or 0
    if nodes < 1 or ranks < 1:
        raise UsageError(
            f"spawn_on_ray: nodes={nodes}, nprocs={nprocs}, gpus_per_node={gpus_per_node}: one "
            "node or more, and nprocs or gpus_per_node from 1 up, are needed"
        )
    asked = resources_of("", ranks, gpus_per_node) | dict(resources or {})
    blob = payload.dumps(fn, tuple(args))
    # Where the ranks begin is the folder of Ray's workers: that of the runtime environment.
    spec = spawn.job_of_function(
        environ,
        nprocs=nodes * ranks,
        device=devices.of_hosts(nodes, environ).kind,
        env=dict(env or {}),
        hosts=hosts_of(nodes, ranks),
        way="ray",
        way_command=[*way_command(address, asked)],
        python=python,
    )
    handle = Handle(spec, blob)
    if not join:
        handle.watch()
        return handle
    return handle.join() or []
