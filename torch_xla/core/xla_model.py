"""`xm`: devices, ranks, collectives and steps, by torch_xla's names."""

from torch_xdist.arena import (
    ToXlaTensorArena,
)
from torch_xdist.core.devices.closures import (
    add_step_closure,
)
from torch_xdist.core.devices.closures import (
    run_step_closures as run_step_closures,
)
from torch_xdist.core.devices.device_names import (
    DeviceContext,
    MemoryInfo,
    get_memory_info,
    get_xla_supported_devices,
    is_xla_tensor,
    parse_xla_device,
    xla_device_hw,
    xla_device_kind,
    xla_real_devices,
    xla_replication_devices,
)
from torch_xdist.core.devices.device_names import (
    device_context as _get_device_context,
)
from torch_xdist.core.devices.ordinals import (
    get_local_ordinal,
    is_master_ordinal,
    master_print,
)
from torch_xdist.core.devices.steps import (
    wait_device_ops,
)
from torch_xdist.debug.rate import (
    RateTracker,
)
from torch_xdist.export.pending import (
    get_stablehlo,
    get_stablehlo_bytecode,
)
from torch_xdist.files.saving import (
    check_view_sharing,
    save,
)
from torch_xdist.files.saving import (
    maybe_convert_to_cpu as _maybe_convert_to_cpu,
)
from torch_xdist.ranks.collective_ops import (
    REDUCE_AND,
    REDUCE_MAX,
    REDUCE_MIN,
    REDUCE_MUL,
    REDUCE_OR,
    REDUCE_SUM,
    CoalescingBuckets,
    all_gather,
    all_gather_bucketized,
    all_reduce,
    all_to_all,
    collective_broadcast,
    collective_permute,
    optimization_barrier_,
    reduce_scatter,
    reduce_scatter_bucketized,
)
from torch_xdist.ranks.gradients import (
    all_reduce_bucketized_gradients,
    broadcast_master_param,
    optimizer_step,
    reduce_gradients,
)
from torch_xdist.ranks.gradients import (
    fetch_gradients as _fetch_gradients,
)
from torch_xdist.ranks.point_to_point import (
    recv,
    send,
)
from torch_xdist.ranks.rendezvous import (
    do_on_ordinals,
    mesh_reduce,
    rendezvous,
    xla_rendezvous,
)
from torch_xdist.ranks.replicas import (
    set_replication,
)
from torch_xdist.spmd.sharding_spec import (
    ShardingSpec,
)
from torch_xdist.torch_xla_compat.old_names import (
    get_ordinal,
    mark_step,
    xla_device,
    xrt_world_size,
)
from torch_xdist.torch_xla_compat.random_seeds import (
    fork_rng,
    get_rng_state,
    set_rng_state,
)
from torch_xdist.torch_xla_compat.replica_groups import (
    create_optimized_replica_groups,
)
from torch_xdist.torch_xla_compat.send_to_device import (
    send_cpu_data_to_device,
)
from torch_xdist.training.compiled_step import (
    unlazy,
)

__all__ = [
    "DeviceContext",
    "MemoryInfo",
    "ShardingSpec",
    "_get_device_context",
    "create_optimized_replica_groups",
    "xla_device",
    "get_xla_supported_devices",
    "xla_real_devices",
    "xla_device_hw",
    "xla_device_kind",
    "xla_replication_devices",
    "parse_xla_device",
    "is_xla_tensor",
    "get_memory_info",
    "set_replication",
    "get_ordinal",
    "get_local_ordinal",
    "xrt_world_size",
    "is_master_ordinal",
    "master_print",
    "RateTracker",
    "ToXlaTensorArena",
    "REDUCE_SUM",
    "REDUCE_MUL",
    "REDUCE_AND",
    "REDUCE_OR",
    "REDUCE_MIN",
    "REDUCE_MAX",
    "all_reduce",
    "all_gather",
    "all_gather_bucketized",
    "all_to_all",
    "collective_permute",
    "collective_broadcast",
    "reduce_scatter",
    "reduce_scatter_bucketized",
    "send",
    "recv",
    "optimization_barrier_",
    "CoalescingBuckets",
    "rendezvous",
    "xla_rendezvous",
    "do_on_ordinals",
    "mesh_reduce",
    "reduce_gradients",
    "all_reduce_bucketized_gradients",
    "optimizer_step",
    "broadcast_master_param",
    "_fetch_gradients",
    "add_step_closure",
    "run_step_closures",
    "mark_step",
    "wait_device_ops",
    "unlazy",
    "save",
    "check_view_sharing",
    "_maybe_convert_to_cpu",
    "send_cpu_data_to_device",
    "set_rng_state",
    "get_rng_state",
    "fork_rng",
    "get_stablehlo",
    "get_stablehlo_bytecode",
]
