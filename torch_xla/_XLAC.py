"""The private names that documents tell users to call."""

from torch_xdist.kernels.raw_ops import (
    _xla_cast_int4,
    _xla_dequantize_tensor,
    _xla_dot_general,
    _xla_quantize_tensor,
)
from torch_xdist.kernels.tpu_custom_call import (
    _xla_tpu_custom_call,
)
from torch_xdist.metrics import (
    counter_names as _xla_counter_names,
)
from torch_xdist.metrics import (
    counter_value as _xla_counter_value,
)
from torch_xdist.metrics import (
    metric_data as _xla_metric_data,
)
from torch_xdist.metrics import (
    metric_names as _xla_metric_names,
)
from torch_xdist.metrics import (
    report as _xla_metrics_report,
)
from torch_xdist.sharded_checkpoint.private_names import (
    _activate_preemption_sync_manager,
    _deactivate_preemption_sync_manager,
    _ensure_xla_coordinator_initialized,
    _sync_point_reached,
)
from torch_xdist.spmd.debug_info import (
    get_xla_tensor_debug_info as _get_xla_tensor_debug_info,
)
from torch_xdist.spmd.private_names import (
    OpSharding,
    XlaShardingSpec,
    _get_local_shard_replica_and_indices,
    _get_local_shards,
    _get_xla_op_sharding,
    _get_xla_op_sharding_v2_params,
    _get_xla_sharding_spec,
    _get_xla_sharding_specs,
    _get_xla_sharding_type,
    _global_tensor_from_cpu_shards,
    _load_local_shards,
    _mark_manual_sharding,
    _spmd_full_to_shard_shape,
    _spmd_shard_to_full_shape,
    _xla_annotate_custom_sharding,
    _xla_clear_sharding,
    _xla_force_spmd_device,
    _xla_get_all_runtime_devices,
    _xla_get_auto_sharding,
    _xla_get_cpu_tensors,
    _xla_get_runtime_devices,
    _xla_get_spmd_config_is_locked,
    _xla_mark_sharding,
    _xla_num_runtime_devices,
    _xla_set_auto_sharding,
    _xla_spmd_all_reduce,
    _xla_spmd_reduce_scatter,
)
from torch_xdist.torch_xla_compat.graphs import (
    dot_of as _get_xla_tensors_dot,
)
from torch_xdist.torch_xla_compat.graphs import (
    graph_hash as _get_graph_hash,
)
from torch_xdist.torch_xla_compat.graphs import (
    hlo_of as _get_xla_tensors_hlo,
)
from torch_xdist.torch_xla_compat.graphs import (
    text_of as _get_xla_tensors_text,
)
from torch_xdist.torch_xla_compat.private_names import (
    _get_git_revs,
    _get_xla_tensor_dimension_size,
    _set_allow_execution,
    _xla_get_default_device,
    _xla_get_devices,
    _xla_get_replication_devices_count,
    _xla_get_rng_seed,
    _xla_get_tensor_id,
    _xla_real_devices,
    _xla_set_mat_mul_precision,
    _xla_set_rng_seed,
    _xla_set_use_full_mat_mul_precision,
    _xla_step_marker,
    _xla_sync_multi,
    _xla_tensors_from_aten,
    _xla_wait_device_ops,
)

__all__ = [
    "_xla_cast_int4",
    "_xla_dequantize_tensor",
    "_xla_dot_general",
    "_xla_quantize_tensor",
    "_xla_tpu_custom_call",
    "_xla_set_auto_sharding",
    "_xla_get_cpu_tensors",
    "_sync_point_reached",
    "_ensure_xla_coordinator_initialized",
    "_deactivate_preemption_sync_manager",
    "_activate_preemption_sync_manager",
    "_get_xla_tensor_debug_info",
    "_xla_spmd_reduce_scatter",
    "_xla_spmd_all_reduce",
    "_xla_num_runtime_devices",
    "_xla_mark_sharding",
    "_xla_get_spmd_config_is_locked",
    "_xla_get_runtime_devices",
    "_xla_get_auto_sharding",
    "_xla_get_all_runtime_devices",
    "_xla_force_spmd_device",
    "_xla_clear_sharding",
    "_xla_annotate_custom_sharding",
    "_spmd_shard_to_full_shape",
    "_spmd_full_to_shard_shape",
    "_mark_manual_sharding",
    "_load_local_shards",
    "_global_tensor_from_cpu_shards",
    "_get_xla_op_sharding_v2_params",
    "_get_xla_op_sharding",
    "_get_local_shards",
    "_get_local_shard_replica_and_indices",
    "XlaShardingSpec",
    "OpSharding",
    "_get_xla_sharding_type",
    "_xla_metrics_report",
    "_xla_counter_names",
    "_xla_counter_value",
    "_xla_metric_names",
    "_xla_metric_data",
    "_get_xla_tensors_text",
    "_get_xla_tensors_hlo",
    "_get_xla_tensors_dot",
    "_get_graph_hash",
    "_get_xla_tensor_dimension_size",
    "_xla_get_devices",
    "_xla_get_default_device",
    "_xla_get_tensor_id",
    "_xla_set_rng_seed",
    "_xla_get_rng_seed",
    "_xla_sync_multi",
    "_xla_step_marker",
    "_xla_wait_device_ops",
    "_get_git_revs",
    "_xla_tensors_from_aten",
    "_xla_set_mat_mul_precision",
    "_xla_set_use_full_mat_mul_precision",
    "_set_allow_execution",
    "_xla_get_replication_devices_count",
    "_get_xla_sharding_spec",
    "_get_xla_sharding_specs",
    "_xla_real_devices",
]
