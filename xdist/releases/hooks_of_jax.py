"""What this package needs of jax beside its public names, each as a probe."""

import importlib

from torch_xdist.releases.probe import USE, Probe, each

_LAUNCHER = "ranks forked from a process that has imported torch and jax"
_PROGRAMS = "programs as StableHLO"
_AHEAD = "programs for a TPU that is not here"
_SVD = "singular values on a TPU"
_NO_SVD = "JAX's own form, over which libtpu may abort"
_LINES = "operations of programs have the user's lines (XLA_HLO_DEBUG)"
_LINES_OF_JAX = "they have those of JAX"
_PROFILER = "sessions and servers of the profiler"
_NO_PROFILER = "a ReleaseError where one is started"
_DIRECT = "programs run without JAX's look at each argument"
_BY_JAX = "JAX looks at each"
_KERNELS = "torch_xla's kernels on a TPU"


def _has_print_options() -> bool:
    try:
        found = importlib.import_module("jaxlib._hlo")
    except ImportError:
        # Where its names are in jax 0.10.0.
        found = importlib.import_module("jaxlib._jax")
    return hasattr(found, "HloPrintOptions")


PROBES = (
    Probe("jax.experimental.layout.Layout", "large weights are turned by copies"),
    Probe("jax.experimental.layout.with_layout_constraint", "large weights are turned by copies"),
    Probe("jax.ffi.ffi_lowering", "collectives through shared memory"),
    Probe("jax.extend.core.Primitive", "collectives through shared memory"),
    Probe("jax.interpreters.mlir.register_lowering", "collectives through shared memory"),
    Probe("jax._src.distributed.global_state.client", "collectives between hosts"),
    Probe("jax._src.xla_bridge.register_backend_factory", "collectives between hosts"),
    Probe("jax._src.xla_bridge.make_cpu_client", "collectives between hosts"),
    Probe("jaxlib._jax.make_gloo_tcp_collectives", "collectives between hosts"),
    Probe("jaxlib._jax.get_distributed_runtime_client", "collectives between hosts"),
    Probe(
        "jax._src.cudnn.fused_attention_stablehlo.check_cudnn_version",
        "cuDNN's attention on GPUs",
        otherwise="attention is written out",
        when=USE,
    ),
    Probe("jaxlib._jax.get_distributed_runtime_service", "collectives between hosts"),
    Probe(
        "jax._src.config.trace_context",
        "programs are kept apart by all settings that they depend on",
        otherwise="they are kept apart by the precision of matrix products",
    ),
    Probe(
        "jaxlib._jax.batched_device_put",
        "arrays go to a device without a check of each",
        otherwise="jax.device_put does it",
    ),
    *each(
        "jax._src.interpreters.pxla",
        "ExecuteReplicated.kept_var_idx ExecuteReplicated.in_handler ExecuteReplicated.out_handler",
        _DIRECT,
        _BY_JAX,
    ),
    Probe(
        "jax._src.pjit._seen_qdds",
        "types of arguments that come once are forgotten with their programs",
        otherwise="JAX keeps some 1 KB of each",
    ),
    Probe("jax.interpreters.mlir.merge_mlir_modules", "HLO modules as parts of programs"),
    Probe(
        "jaxlib._jax.mlir.hlo_to_stablehlo",
        "HLO modules as parts of programs",
        otherwise="a ReleaseError where one is used",
    ),
    Probe(
        "jax._src.lax.windowed_reductions._select_and_scatter",
        "xla_builder's SelectAndScatter",
        otherwise="a ReleaseError where it is used",
    ),
    Probe(
        "jax._src.interpreters.mlir.eval_dynamic_shape_as_tensor",
        "exported programs leave sizes open",
        otherwise="a ReleaseError where one does",
    ),
    Probe(
        "jax._src.interpreters.mlir.refine_polymorphic_shapes",
        "StableHLO with open sizes runs",
        otherwise="a ReleaseError where it shall",
    ),
    Probe(
        "jax._src.export._export._module_to_bytecode",
        "StableHLO with operations of JAX's own is written",
        otherwise="such a module is refused",
    ),
    Probe("jaxlib.mlir.ir._OperationBase.location", _LINES, _LINES_OF_JAX),
    *each("jaxlib.mlir.ir.Location", "callsite file name unknown", _LINES, _LINES_OF_JAX),
    Probe("jaxlib.mlir.ir.NameLoc", _LINES, "locations are asked whether they are names"),
    *each(
        "jaxlib._profiler",
        "ProfilerSession ProfileOptions start_server",
        _PROFILER,
        _NO_PROFILER,
    ),
    Probe(
        "jaxlib._hlo.HloPrintOptions",
        "programs as HLO text with the shapes of operands",
        otherwise="the text is that of JAX",
        check=_has_print_options,
    ),
    Probe(
        "jax._src.interpreters.mlir.LoweringParameters.for_export",
        "tensors are placed in the memory of the host",
        otherwise="on the CPU, where that is all there is, by a call to XLA as elsewhere",
    ),
    Probe(
        "jaxlib._jax.mlir.mlir_module_to_xla_computation",
        "programs as HLO",
        otherwise="a ReleaseError where one is asked for",
    ),
    *each(
        "jax.interpreters.mlir",
        "aval_to_ir_type dense_int_array i32_attr ir lower_fun make_ir_context",
        _PROGRAMS,
    ),
    *each(
        "jaxlib.mlir.ir",
        "Location ArrayAttr Block BoolAttr DenseElementsAttr DictAttr FlatSymbolRefAttr"
        " InsertionPoint IntegerAttr IntegerType.get_signless Module RankedTensorType StringAttr"
        " SymbolTable TupleType",
        _PROGRAMS,
    ),
    Probe("jaxlib.version.__version_info__", _PROGRAMS),
    *each(
        "jaxlib.mlir.dialects.stablehlo",
        "ConstantOp CustomCallOp DotDimensionNumbers.get DotGeneralOp DynamicBroadcastInDimOp"
        " GetTupleElementOp MaxOp MinOp NegOp SubtractOp"
        " StablehloCompatibilityRequirement.WEEK_4 deserialize_portable_artifact"
        " get_version_from_compatibility_requirement serialize_portable_artifact_str",
        _PROGRAMS,
    ),
    Probe("jaxlib.mlir.dialects.func.CallOp", _PROGRAMS),
    Probe("jax._src.interpreters.mlir.module_to_bytecode", _AHEAD, when=USE),
    *each("jax._src.interpreters.mlir", "ir.Module.parse make_ir_context", _AHEAD, when=USE),
    Probe("jax._src.compiler.get_compile_options", _AHEAD, when=USE),
    Probe("jaxlib._jax.DeviceList", _AHEAD, when=USE),
    Probe("jax._src.sharding_impls.parse_flatten_op_sharding", _AHEAD, when=USE),
    *each("jax._src.lib.xla_client", "OpSharding HloSharding.from_proto", _AHEAD, when=USE),
    Probe("jax.experimental.topologies.get_topology_desc", _AHEAD, when=USE),
    *each("jax._src", "lax.linalg.svd_p interpreters.mlir.register_lowering", _SVD, _NO_SVD),
    Probe("jax._src.interpreters.mlir._lowerings", _SVD, _NO_SVD),
    *each(
        "jax._src",
        "interpreters.mlir._platform_specific_lowerings interpreters.mlir.lower_fun"
        " lax.convolution.conv_general_dilated_p lax.lax.dot_general_p",
        "products of 64-bit integers on a TPU",
        "JAX's own form, which libtpu refuses",
    ),
    *each(
        "jax._src.compilation_cache",
        "_cache _cache_initialized reset_cache _get_cache",
        "compiled programs are kept between runs",
        "they are where XLA_PERSISTENT_CACHE_PATH names a folder, by JAX's own cache",
    ),
    Probe(
        "jax.experimental.serialize_executable._JaxPjrtPickler",
        "programs are found on disk before they are traced",
        "they are traced, and then found by JAX's key",
    ),
    Probe("jaxlib.lapack.prepare_lapack_call", "programs with LAPACK's functions on disk"),
    *each(
        "jax._src.compilation_cache",
        "get_cache_key combine_executable_and_time compress_executable",
        "`xla-run compile --save` keeps programs under JAX's keys",
        when=USE,
    ),
    Probe("jaxlib.mlir.passmanager.PassManager.parse", _PROGRAMS),
    Probe("jaxlib.mlir.dialects.sdy.sharding_group", "tensors that are sharded alike"),
    *each(
        "jax.experimental.pallas", "pallas_call tpu.force_tpu_interpret_mode", "kernels", when=USE
    ),
    Probe(
        "jax.experimental.multihost_utils.process_allgather",
        "SPMD over several processes",
        when=USE,
    ),
    Probe(
        "jax._src.mesh_utils._create_device_mesh_for_nd_torus",
        "hybrid meshes along the links of a TPU",
        otherwise="they are in the order of the devices",
    ),
    *each(
        "jax.experimental.pallas.ops.tpu",
        "flash_attention.SegmentIds flash_attention._flash_attention_impl"
        " flash_attention._flash_attention_bwd_dkv flash_attention._flash_attention_bwd_dq"
        " megablox.gmm.gmm megablox.gmm.tgmm paged_attention.paged_attention"
        " ragged_paged_attention.ragged_paged_attention",
        _KERNELS,
        when=USE,
    ),
    *each(
        "jax.experimental.pallas.ops.tpu.splash_attention",
        "splash_attention_kernel.BlockSizes splash_attention_kernel.DEFAULT_MASK_VALUE"
        " splash_attention_kernel.QKVLayout splash_attention_kernel.SegmentIds"
        " splash_attention_kernel.make_splash_mha splash_attention_mask.CausalMask"
        " splash_attention_mask.FullMask splash_attention_mask.LocalMask"
        " splash_attention_mask.MultiHeadMask",
        _KERNELS,
        when=USE,
    ),
    Probe("jax._src.dispatch.wait_for_tokens", _LAUNCHER, otherwise="it is not called at exit"),
    Probe("jax._src.api.clean_up", _LAUNCHER, otherwise="it is not called at exit"),
    Probe("jax._src.xla_bridge.backends_are_initialized", _LAUNCHER),
)
