"""What this package needs of torch and jax beside their public names, each as a probe.

A hook that is read somewhere in the package stands here; what is changed stands in `patches`. A
probe only looks: it takes microseconds, starts no device and changes nothing. `probes` asks them.
"""

import ctypes
import importlib
import inspect
from pathlib import Path
from typing import Any

import torch

from torch_xdist.releases import hooks_of_jax, patch_table, patches
from torch_xdist.releases.probe import USE, Probe, each

# c10::DeviceType; fixed since torch 1.9, and part of torch's serialized formats.
XLA, META, LAZY = 9, 14, 17
_GUARDS = "_ZN3c104impl26device_guard_impl_registryE"


def device_guards() -> Any:
    """torch's device guards: an array of pointers by device type, up to that of `lazy`."""
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    return (ctypes.c_void_p * (max(XLA, LAZY) + 1)).in_dll(library, _GUARDS)


def _has_guard_of_lazy() -> bool:
    guards = device_guards()
    return bool(guards[LAZY] and guards[META])


class _Wrapped(torch.Tensor):
    """What a wrapper is an instance of."""

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise NotImplementedError(f"the wrapper of a probe: {func} was called on it")


def _wraps_lazy() -> bool:
    any_keys = torch._C._dispatch_keys(torch.empty(0))
    make = inspect.unwrap(torch.Tensor._make_wrapper_subclass)
    # The order in which core.devices.tensor gives them.
    values = (None, None, torch.float32, torch.strided, torch.device("lazy", 0), False, False)
    tensor = make(_Wrapped, (1,), (1,), *values, None, False, False, any_keys - any_keys)
    return tensor.device.type == "lazy"


def _has_autocast_of_xla() -> bool:
    library = torch.library.Library("_", "IMPL", "AutocastXLA")
    del library
    # Between a wrapper on `xla` and one on `lazy`, which `core.devices.tensor` takes for the key.
    make = inspect.unwrap(torch.Tensor._make_wrapper_subclass)
    of_xla, of_lazy = (torch._C._dispatch_keys(make(_Wrapped, (1,), device=d)) for d in _PAIR)
    return str(of_xla - of_lazy) == "DispatchKeySet(AutocastXLA)"


def _names_detour() -> bool:
    """Whether torch's DTensors still treat xla apart, by a constant that can be changed."""
    api = importlib.import_module("torch.distributed.tensor._api")
    made = patches.is_made("torch.distributed.tensor._api.distribute_tensor.__code__")
    return made or "xla" in inspect.unwrap(api.distribute_tensor).__code__.co_consts


_PAIR = (torch.device("xla", 0), torch.device("lazy", 0))
_ONE_BY_ONE = "each is asked for its own, which takes longer"
_DISPATCH = "operators arrive in Python with their schema"
_DECOMPOSED = "operators without a lowering are made of others"
_PROMOTION = "operands are promoted as torch does it"
_LAUNCHER = "ranks forked from a process that has imported torch and jax"
_THREADS = "process groups of threads that are ranks"
_NESTED = "operands in lists and dicts are found"
_EXPORT = "torch's exported programs as StableHLO"
_REPLAY = "functions that were declared pure are replayed"
_CHECKPOINTS = "checkpoints of sharded tensors"
_HIGHER_ORDER = "regions and control flow in graphs that torch.compile captures"
_FLEX_ATTENTION = "flex_attention of device tensors"
_REFUSED = "torch refuses them"


PROBES = (
    # torch: tensors
    Probe(
        "torch.Tensor._make_wrapper_subclass",
        "device tensors are wrappers without storage on `lazy`",
        check=_wraps_lazy,
    ),
    Probe("torch._C._disabled_torch_function_impl", "device tensors skip __torch_function__"),
    Probe("torch._C._dispatch_keys", "the key AutocastXLA is found between two wrappers"),
    Probe("torch._C._ExcludeDispatchKeyGuard", "autocast's kernels call on without autocast"),
    Probe("torch._C.DispatchKey.Meta", "sizes and strides are changed in place"),
    Probe("torch._C.DispatchKeySet", "sizes and strides are changed in place"),
    Probe("torch.Tensor.data.__set__", "a tensor gets the room of a larger one"),
    Probe("torch._C.Generator", "torch.Generator('xla')"),
    Probe("torch._tensor_str._str", "printing device tensors"),
    Probe("torch._utils._rebuild_device_tensor_from_cpu_tensor", "pickling device tensors"),
    Probe("torch._utils._rebuild_parameter", "pickling device tensors"),
    Probe("torch.utils.swap_tensors", "torch's lazy modules get their sizes on the device"),
    Probe("torch.Tensor._use_count", "a module whose parameters a graph holds gets new ones"),
    Probe("torch._C._nn._parse_to", "torch's lazy modules move to the device"),
    Probe("torch._C.PyTorchFileReader.get_record_offset", "files are written tensor by tensor"),
    Probe("pickle._Pickler", "files are written tensor by tensor"),
    Probe("torch.serialization.skip_data", "files are written tensor by tensor"),
    # torch: the device
    Probe(
        "torch/lib/libc10.so: device_guard_impl_registry",
        "a device 'xla' has a device guard, made of those of `lazy` and `meta`",
        check=_has_guard_of_lazy,
    ),
    Probe("torch._register_device_module", "there is a torch.xla"),
    Probe(
        "torch.library.Library: AutocastXLA", "torch.autocast('xla')", check=_has_autocast_of_xla
    ),
    # torch: operators
    Probe("torch.ops.aten.add.Tensor._can_decompose", _DISPATCH),
    Probe("torch.ops.aten.add.Tensor._op_dk", _DISPATCH),
    Probe("torch.ops.aten.add.Tensor.redispatch", _DISPATCH),
    Probe("torch._C._dispatch_has_kernel_for_dispatch_key", _DECOMPOSED),
    Probe("torch._decomp.global_decomposition_table", _DECOMPOSED),
    Probe("torch._C.DispatchKey.CompositeExplicitAutograd", _DECOMPOSED),
    Probe("torch._C.DispatchKey.XLA", _DECOMPOSED),
    Probe("torch.utils._python_dispatch.TorchDispatchMode", _DECOMPOSED),
    Probe("torch._prims_common.elementwise_dtypes", _PROMOTION),
    *each(
        "torch._prims_common.ELEMENTWISE_TYPE_PROMOTION_KIND",
        "NO_OPMATH DEFAULT INT_TO_FLOAT COMPLEX_TO_FLOAT",
        _PROMOTION,
    ),
    Probe("torch.fx.experimental._config.backed_size_oblivious", "shapes without sympy"),
    *each(
        "torch.utils._pytree",
        "TreeSpec tree_flatten tree_unflatten tree_leaves tree_map tree_map_only",
        _NESTED,
    ),
    *each("torch.utils._pytree", "treespec_dumps treespec_loads", _EXPORT),
    Probe("torch._ops.OpOverload", _DISPATCH),
    Probe("torch._foreach_add_", "optimizers count their steps in one row"),
    Probe("torch.autograd.forward_ad._current_level", "attention leaves forward mode to torch"),
    Probe("torch.autograd.Variable._execution_engine.queue_callback", "FSDP ends its backward"),
    Probe("torch.autograd._is_checkpoint_valid", "activation checkpoints, the reentrant way"),
    *each(
        "torch.nn.modules.module",
        "_global_forward_hooks _global_forward_pre_hooks _global_backward_hooks"
        " _global_backward_pre_hooks",
        _REPLAY,
    ),
    *each(
        "torch.optim.optimizer",
        "_global_optimizer_pre_hooks _global_optimizer_post_hooks",
        _REPLAY,
    ),
    *each("torch.Tensor", "_use_count _post_accumulate_grad_hooks", _REPLAY),
    Probe("torch._C._get_function_stack_at", _REPLAY),
    Probe("torch._C._autograd._top_saved_tensors_default_hooks", _REPLAY),
    # torch: captured graphs
    Probe("torch._decomp.get_decompositions", _EXPORT),
    Probe("torch._dispatch.python.enable_python_dispatcher", _EXPORT),
    Probe("torch.export.ExportedProgram._graph_module_flat_inputs", _EXPORT),
    Probe("torch._export.serde.serialize.GraphModuleSerializer", _EXPORT, when=USE),
    Probe("torch._subclasses.fake_tensor.FakeTensorMode", "partitions of a scan's gradients"),
    *each("functorch.compile", "aot_function make_boxed_func", "torch.compile", when=USE),
    Probe("torch._dynamo.lookup_backend", "torch.compile without a backend", when=USE),
    Probe(
        "torch.fx.passes.infra.partitioner.CapabilityBasedPartitioner",
        "captured graphs of which a part runs on the CPU",
        when=USE,
    ),
    Probe(
        "torch.ao.quantization.fx._decomposed",
        "torch.ops.quantized_decomposed",
        otherwise="it is not there",
        when=USE,
    ),
    Probe("torch._C._AutoDispatchBelowAutograd", "what runs on the CPU runs as torch calls it"),
    *each("torch._C", "_set_conj _set_neg", "conjugates of tensors that are kept on the host"),
    *each(
        "torch._C",
        "_dispatch_has_computed_kernel_for_dispatch_key _functorch"
        " _functorch.peek_interpreter_stack"
        " DisableTorchFunction",
        "programs that come once are computed",
    ),
    # torch: several ranks
    Probe("torch.distributed.Backend.register_backend", "the backend 'xla'"),
    Probe("torch.distributed.register_rendezvous_handler", "init_method='xla://'"),
    Probe("torch.distributed.rendezvous._rendezvous_handlers", "env:// in `xla-run compile`"),
    Probe("torch.distributed.distributed_c10d._resolve_process_group", "collectives by group name"),
    Probe("torch._C._distributed_c10d._create_work_from_future", "works that are complete"),
    Probe("torch._C._distributed_c10d._set_thread_isolation_mode", _THREADS),
    *each(
        "torch.distributed.distributed_c10d._World",
        "default_pg pg_map pg_names pg_group_ranks pg_backend_config group_count tags_to_pg"
        " pg_to_tag",
        _THREADS,
    ),
    Probe(
        "torch.distributed.tensor._api.distribute_tensor.__code__: 'xla'",
        "DTensors on the device",
        check=_names_detour,
        when=patch_table.FIRST_MESH,
    ),
    Probe(
        "torch.distributed.tensor._random._RNGStateTracker._distribute_region",
        "random numbers of DTensors",
        when=patch_table.FIRST_MESH,
    ),
    Probe("torch.amp.GradScaler._maybe_opt_step", "steps are skipped without a look at a value"),
    Probe("torch.distributed.device_mesh.DeviceMesh._init_process_groups", "meshes of ranks"),
    Probe("torch.nn.modules.batchnorm._BatchNorm", "SyncBatchNorm"),
    # torch: one process, all devices
    Probe("torch._C._DisableTorchDispatch", "XLAShardedTensor"),
    *each(
        "torch.distributed.tensor._dtensor_spec",
        "DTensorSpec TensorMeta",
        "DTensor's word for a sharding",
        when=USE,
    ),
    Probe("torch.nn.modules.module._forward_unimplemented", "SPMD's FSDP checks what it wraps"),
    *each(
        "torch.distributed",
        "_shard._utils.narrow_tensor_by_index checkpoint._dedup_save_plans.dedup_save_plans"
        " checkpoint._fsspec_filesystem.FsspecReader checkpoint._fsspec_filesystem.FsspecWriter"
        " checkpoint._traverse.set_element checkpoint._traverse.traverse_state_dict",
        _CHECKPOINTS,
        when=USE,
    ),
    *each(
        "torch",
        "_safe_softmax _dynamo._trace_wrapped_higher_order_op.TransformGetItemToIndex",
        _FLEX_ATTENTION,
        _REFUSED,
        patch_table.FLEX,
    ),
    *each(
        "torch.nn.attention.flex_attention",
        "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG _identity _validate_device _vmap_for_bhqkv"
        " create_block_mask flex_attention_hop noop_mask",
        _FLEX_ATTENTION,
        _REFUSED,
        patch_table.FLEX,
    ),
    Probe(
        "torch._dynamo.utils.counters",
        "long loops of modules are cut where nothing was compiled",
        when=patch_table.DYNAMO,
    ),
    Probe(
        "torch.nested._internal.nested_tensor.nested_view_from_values_offsets",
        "attention of jagged nested tensors in graphs that torch.compile captures",
        when=patch_table.NESTED,
    ),
    *each(
        "torch",
        "_ops._higher_order_ops _ops.HigherOrderOperator.py_impl _C.DispatchKey.Autograd"
        " _C.DispatchKey.AutogradLazy utils._python_dispatch._get_current_dispatch_mode",
        _HIGHER_ORDER,
    ),
    Probe("torch._C._len_torch_function_stack", _LAUNCHER),
    Probe("torch._C._len_torch_dispatch_stack", _LAUNCHER),
    *hooks_of_jax.PROBES,
)
