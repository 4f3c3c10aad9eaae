"""The private names that documents tell users to call."""

from torch_xdist.builder import (
    lowering_context as lowering,
)
from torch_xdist.builder.graph import (
    XlaBuilder,
    XlaComputation,
    XlaOp,
)
from torch_xdist.builder.placeholders import (
    handles as _get_tensors_handle,
)
from torch_xdist.builder.placeholders import (
    is_placeholder as _is_placecholder,
)
from torch_xdist.builder.private_names import (
    _xla_computation_text,
    _xla_create_placeholder_tensor,
    _xla_op_build,
    _xla_op_builder,
    _xla_op_computation_from_module_proto,
    _xla_op_create,
    _xla_op_create_builder,
    _xla_op_param,
    _xla_op_shape,
    _xla_op_tensor_shape,
)
from torch_xdist.builder.user_computation import (
    user_computation as _xla_user_computation,
)
from torch_xdist.core.run.analysis import (
    allows_execution as _get_allow_execution,
)
from torch_xdist.core.run.analysis import (
    graph_name as _get_current_graph_name,
)
from torch_xdist.core.run.analysis import (
    set_allow_execution as _set_allow_execution,
)
from torch_xdist.core.run.analysis import (
    set_graph_name as _set_current_graph_name,
)
from torch_xdist.debug import native_profiler as profiler
from torch_xdist.dynamo.private_names import (
    _check_device_tensor_need_materialization,
    _check_tensor_need_materialization,
    _clear_pending_irs,
    _get_base_seed_as_tensor,
    _get_graph_hash,
    _get_seed_info_id,
    _get_tensors_xla_device_data_node,
    _replace_xla_tensor,
    _run_cached_graph,
    _unique_id_for_ir_and_data,
    _xla_get_tensor_id,
    _xla_sync_multi,
    _xla_warm_up_cache,
)
from torch_xdist.export.custom_calls import (
    xla_custom_call as _xla_custom_call,
)
from torch_xdist.export.dynamic import (
    mark_dynamic as _xla_mark_dynamic,
)
from torch_xdist.export.dynamic_reshapes import (
    dynamic_expand_xla as _xla_dynamic_expand,
)
from torch_xdist.export.dynamic_reshapes import (
    dynamic_view_xla as _xla_dynamic_view,
)
from torch_xdist.export.markers import (
    xla_mark_tensor as _xla_mark_tensor,
)
from torch_xdist.export.pending import (
    all_numbers_special_scalars as _get_xla_all_numbers_special_scalars,
)
from torch_xdist.export.pending import (
    set_all_numbers_special_scalars as _set_xla_all_numbers_special_scalars,
)
from torch_xdist.export.private_names import (
    _get_stablehlo,
    _run_stablehlo,
)
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
    clear_counters as _clear_xla_counters,
)
from torch_xdist.metrics import (
    clear_metrics as _clear_xla_metrics,
)
from torch_xdist.metrics import (
    counter_names as _xla_counter_names,
)
from torch_xdist.metrics import (
    counter_value as _xla_counter_value,
)
from torch_xdist.metrics import (
    executed_fallback_ops as _get_executed_fallback_ops,
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
from torch_xdist.metrics import (
    short_report as _short_xla_metrics_report,
)
from torch_xdist.ranks.collective_ops import (
    optimization_barrier_ as _xla_optimization_barrier_,
)
from torch_xdist.ranks.private_names import (
    IrValue,
    _get_all_reduce_token,
    _set_all_reduce_token,
    _xla_all_gather,
    _xla_all_gather_coalesced,
    _xla_all_gather_coalesced_out,
    _xla_all_gather_out,
    _xla_all_reduce,
    _xla_all_reduce_inplace,
    _xla_all_to_all,
    _xla_collective_permute,
    _xla_get_replication_devices,
    _xla_recv,
    _xla_reduce_scatter,
    _xla_reduce_scatter_coalesced,
    _xla_reduce_scatter_coalesced_out,
    _xla_reduce_scatter_out,
    _xla_send,
    _xla_set_replication_devices,
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
    _xla_tensors_from_aten,
)
from torch_xdist.torch_xla_compat.buffer_donation import (
    get_buffer_donation as _get_buffer_donation,
)
from torch_xdist.torch_xla_compat.buffer_donation import (
    set_buffer_donation as _set_buffer_donation,
)
from torch_xdist.torch_xla_compat.buffer_donation import (
    xla_get_enable_alias_with_buffer_donor_config as _xla_get_enable_alias_with_buffer_donor_config,
)
from torch_xdist.torch_xla_compat.buffer_donation import (
    xla_set_enable_alias_with_buffer_donor_config as _xla_set_enable_alias_with_buffer_donor_config,
)
from torch_xdist.torch_xla_compat.dlpack import (
    from_dlpack as _from_dlpack,
)
from torch_xdist.torch_xla_compat.dlpack import (
    to_dlpack as _to_dlpack,
)
from torch_xdist.torch_xla_compat.graphs import (
    dot_of as _get_xla_tensors_dot,
)
from torch_xdist.torch_xla_compat.graphs import (
    hlo_of as _get_xla_tensors_hlo,
)
from torch_xdist.torch_xla_compat.graphs import (
    hlo_proto_of as _get_xla_tensors_hlo_proto,
)
from torch_xdist.torch_xla_compat.graphs import (
    text_of as _get_xla_tensors_text,
)
from torch_xdist.torch_xla_compat.ir_debug import (
    _get_ir_debug,
    _set_ir_debug,
    _set_xla_custom_op_name_prefix,
    _xla_tensors_report,
)
from torch_xdist.torch_xla_compat.lazy_settings import (
    _get_xla_enable_device_data_cache,
    _get_xla_handle_special_scalars,
    _get_xla_tensor_shape_type,
    _set_xla_enable_device_data_cache,
    _set_xla_handle_special_scalars,
    _xla_register_custom_call_target,
)
from torch_xdist.torch_xla_compat.plugins import (
    DevicePlugin as PjRtPlugin,
)
from torch_xdist.torch_xla_compat.plugins import (
    register_plugin as _register_pjrt_plugin,
)
from torch_xdist.torch_xla_compat.private_names import (
    _get_git_revs,
    _get_xla_tensor_dimension_size,
    _xla_get_default_device,
    _xla_get_devices,
    _xla_get_replication_devices_count,
    _xla_get_rng_seed,
    _xla_real_devices,
    _xla_set_mat_mul_precision,
    _xla_set_rng_seed,
    _xla_set_use_full_mat_mul_precision,
    _xla_step_marker,
    _xla_wait_device_ops,
)
from torch_xdist.torch_xla_compat.ready import (
    on_ready_callback as _on_ready_callback,
)
from torch_xdist.torch_xla_compat.runtime_names import (
    _init_computation_client,
    _init_xla_lazy_backend,
    _prepare_to_exit,
    _unsafe_buffer_pointer,
    _xla_computation_cache_is_initialized,
    _xla_device_kind,
    _xla_get_all_device_attributes,
    _xla_get_all_devices,
    _xla_get_default_device_ordinal,
    _xla_get_device_attributes,
    _xla_get_device_hw_type,
    _xla_get_device_ordinal,
    _xla_get_mat_mul_precision,
    _xla_get_num_cached_compilation_graph,
    _xla_get_num_processes,
    _xla_get_platform_version,
    _xla_get_process_index,
    _xla_get_tensor_view_alias_id,
    _xla_increment_counter,
    _xla_memory_info,
    _xla_num_devices,
    _xla_num_global_devices,
    _xla_runtime_is_initialized,
    _xla_set_default_device,
    _xla_sync_live_tensors,
)
from torch_xdist.training.eager import (
    eager_mode as _set_use_eager_mode,
)
from torch_xdist.training.eager import (
    is_eager_mode as _get_use_eager_mode,
)
from torch_xdist.training.optimizer_steps import (
    _xla_adam_optimizer_step_,
    _xla_sgd_optimizer_step_,
)
from torch_xdist.training.shape_detector import (
    _dynamic_shape_detector_end_session,
    _dynamic_shape_detector_get_max_different_graphs,
    _dynamic_shape_detector_remove_session,
    _dynamic_shape_detector_set_max_different_graphs,
    _dynamic_shape_detector_start_session,
)

__all__ = [
    "IrValue", "_get_xla_all_numbers_special_scalars", "_get_xla_enable_device_data_cache",
    "_get_xla_handle_special_scalars", "_get_xla_tensor_shape_type",
    "_set_xla_enable_device_data_cache", "_set_xla_handle_special_scalars",
    "_xla_adam_optimizer_step_", "_xla_all_gather_coalesced", "_xla_all_gather_coalesced_out",
    "_xla_all_gather_out", "_xla_get_replication_devices", "_xla_recv",
    "_xla_reduce_scatter_coalesced", "_xla_reduce_scatter_coalesced_out",
    "_xla_reduce_scatter_out", "_xla_register_custom_call_target", "_xla_send",
    "_xla_set_replication_devices", "_xla_sgd_optimizer_step_", "PjRtPlugin",
    "_register_pjrt_plugin", "_get_all_reduce_token", "_set_all_reduce_token",
    "_xla_all_gather", "_xla_all_reduce", "_xla_all_reduce_inplace", "_xla_all_to_all",
    "_xla_reduce_scatter", "_get_allow_execution", "_init_computation_client",
    "_init_xla_lazy_backend", "_prepare_to_exit", "_unsafe_buffer_pointer",
    "_xla_computation_cache_is_initialized", "_xla_device_kind",
    "_xla_get_all_device_attributes", "_xla_get_all_devices", "_xla_get_default_device_ordinal",
    "_xla_get_device_attributes", "_xla_get_device_hw_type", "_xla_get_device_ordinal",
    "_xla_get_mat_mul_precision", "_xla_get_num_cached_compilation_graph",
    "_xla_get_num_processes", "_xla_get_platform_version", "_xla_get_process_index",
    "_xla_get_tensor_view_alias_id", "_xla_increment_counter", "_xla_memory_info",
    "_xla_num_devices", "_xla_num_global_devices", "_xla_runtime_is_initialized",
    "_xla_set_default_device", "_xla_sync_live_tensors", "_dynamic_shape_detector_end_session",
    "_dynamic_shape_detector_get_max_different_graphs",
    "_dynamic_shape_detector_remove_session",
    "_dynamic_shape_detector_set_max_different_graphs", "_dynamic_shape_detector_start_session",
    "_get_current_graph_name", "_set_current_graph_name", "_clear_xla_counters",
    "_clear_xla_metrics", "_get_executed_fallback_ops", "_short_xla_metrics_report",
    "_xla_optimization_barrier_", "_xla_collective_permute", "_to_dlpack", "_from_dlpack",
    "_on_ready_callback", "_set_use_eager_mode", "_get_use_eager_mode",
    "_check_device_tensor_need_materialization", "_check_tensor_need_materialization",
    "_clear_pending_irs", "_get_base_seed_as_tensor", "_get_seed_info_id",
    "_get_tensors_xla_device_data_node", "_replace_xla_tensor", "_run_cached_graph",
    "_unique_id_for_ir_and_data", "_xla_warm_up_cache", "_get_buffer_donation",
    "_set_buffer_donation", "_xla_get_enable_alias_with_buffer_donor_config",
    "_xla_set_enable_alias_with_buffer_donor_config", "XlaBuilder", "XlaComputation", "XlaOp",
    "_get_tensors_handle", "_is_placecholder", "_xla_computation_text",
    "_xla_create_placeholder_tensor", "_xla_op_build", "_xla_op_builder",
    "_xla_op_computation_from_module_proto", "_xla_op_create", "_xla_op_create_builder",
    "_xla_op_param", "_xla_op_shape", "_xla_op_tensor_shape", "_xla_user_computation",
    "lowering", "_xla_custom_call", "_xla_mark_dynamic", "_xla_dynamic_expand",
    "_xla_dynamic_view", "_xla_mark_tensor", "_set_xla_all_numbers_special_scalars",
    "_get_stablehlo", "_run_stablehlo", "_xla_cast_int4", "_xla_dequantize_tensor",
    "_xla_dot_general", "_xla_quantize_tensor", "_xla_tpu_custom_call",
    "_xla_set_auto_sharding", "_xla_get_cpu_tensors", "_sync_point_reached",
    "_ensure_xla_coordinator_initialized", "_deactivate_preemption_sync_manager",
    "_activate_preemption_sync_manager", "_get_xla_tensor_debug_info",
    "_xla_spmd_reduce_scatter", "_xla_spmd_all_reduce", "_xla_num_runtime_devices",
    "_xla_mark_sharding", "_xla_get_spmd_config_is_locked", "_xla_get_runtime_devices",
    "_xla_get_auto_sharding", "_xla_get_all_runtime_devices", "_xla_force_spmd_device",
    "_xla_clear_sharding", "_xla_annotate_custom_sharding", "_spmd_shard_to_full_shape",
    "_spmd_full_to_shard_shape", "_mark_manual_sharding", "_load_local_shards",
    "_global_tensor_from_cpu_shards", "_get_xla_op_sharding_v2_params", "_get_xla_op_sharding",
    "_get_local_shards", "_get_local_shard_replica_and_indices", "XlaShardingSpec",
    "OpSharding", "_get_xla_sharding_type", "_xla_metrics_report", "_xla_counter_names",
    "_xla_counter_value", "_xla_metric_names", "_xla_metric_data", "_get_xla_tensors_text",
    "_get_xla_tensors_hlo", "_get_xla_tensors_dot", "_get_graph_hash",
    "_get_xla_tensor_dimension_size", "_xla_get_devices", "_xla_get_default_device",
    "_xla_get_tensor_id", "_xla_set_rng_seed", "_xla_get_rng_seed", "_xla_sync_multi",
    "_xla_step_marker", "_xla_wait_device_ops", "_get_git_revs", "_xla_tensors_from_aten",
    "_xla_set_mat_mul_precision", "_xla_set_use_full_mat_mul_precision", "_set_allow_execution",
    "_xla_get_replication_devices_count", "_get_xla_sharding_spec", "_get_xla_sharding_specs",
    "_get_ir_debug", "_set_ir_debug", "_set_xla_custom_op_name_prefix", "_xla_tensors_report",
    "_get_xla_tensors_hlo_proto", "profiler",
    "_xla_real_devices",
]  # fmt: skip
