"""Every change this package makes to torch and jax, and when and why: one table.

A part that has to change something of theirs enters a row here; `patches` makes the change. What
is entered through torch's own registries (torch.library, ...) is none: kernels, backends, handlers.
"""

from typing import NamedTuple

import torch


class Patch(NamedTuple):
    """One row: what is changed, by which module below torch_xdist, and why."""

    target: str  # a dotted path; `*` stands for every loaded module below that has the name
    owner: str
    why: str
    when: str = "import"  # of torch_xla; else one of the moments below
    absent: str = ""  # why some releases of torch lack the target; empty: it has to be there
    is_new: bool = False  # a name torch does not have
    is_marked: bool = False  # on objects behind `*` that the module finds by itself
    since: str = ""  # the first release of torch that needs it
    until: str = ""  # the first release of torch that does not need it

    @property
    def is_needed(self) -> bool:
        """Whether this torch needs the change."""
        is_past = bool(self.until) and torch.__version__ >= self.until
        return not is_past and (not self.since or torch.__version__ >= self.since)


FIRST_MESH = "the first DeviceMesh of xla"
DYNAMO = "the import of torch._dynamo"
FLEX = "the import of torch.nn.attention.flex_attention"
DTENSOR = "the import of torch.distributed.tensor"
TORCHS_FSDP = "the import of torch.distributed.fsdp"
THREADS = "the first thread that is a rank"
SHARDED_GRADIENTS = "the import of torch_xla's FSDP or ZeRO"
DEVICES = "the start of JAX's devices"
NESTED = "the import of torch.nested's attention"
WRAPPED = "the first subclass of torch.Tensor that is made for the device"
ASKED_PROFILE = "the first profile that `xla-run profile` takes"

_ACCELERATOR = "core.torch_side.accelerator"
_OPTIMIZERS = "core.composites.optimizers"
_LAZY_MODULES = "core.torch_side.lazy_modules"
_MOVED = "core.torch_side.moved_modules"
_IN_DYNAMO = "core.torch_side.in_dynamo"
_METHODS = "core.torch_side.tensor_methods"
_REGISTRATION = "core.torch_side.registration"
_SUBCLASSES = "core.torch_side.wrapper_subclasses"
_DTENSORS = "ranks.c10d.dtensors"
_WITHOUT_DYNAMO = "core.unimported.without_dynamo"
_WITHOUT_SYMPY = "core.unimported.without_sympy"

_ACCELERATORS = "torch.accelerator and its users take xla for the accelerator"
_ASKED_OF_C = ("_get_accelerator",) + tuple(
    f"_accelerator_{name}"
    for name in (
        "getAccelerator", "getDeviceIndex", "setDeviceIndex", "exchangeDevice",
        "maybeExchangeDevice", "getStream", "setStream", "synchronizeDevice", "emptyCache",
        "isAllocatorInitialized", "getDeviceStats", "resetAccumulatedStats", "resetPeakStats",
    )
)  # fmt: skip
_ASKED_LATER = tuple(
    f"_accelerator_{name}" for name in ("getDeviceCapability", "emptyHostCache", "getMemoryInfo")
)
_CONTROL_FLOW = "control flow over device tensors becomes rows of the trace"
_CONTROL_FLOWS = tuple(
    f"torch._higher_order_ops.{name}{same}"
    for name in ("cond", "while_loop", "scan")
    for same in ("", f".{name}")
)
_CAPTURED = "autograd has no threads for what is captured of device tensors"
_GROUPED = "optimizers take their grouped (foreach) forms for device tensors"
_FLEX_ATTENTION = "flex_attention of device tensors is recorded, where torch refuses them"
_NO_DYNAMO = "dynamo is not imported where nobody compiles with it"
_NO_SYMPY = "sympy is not imported where nobody has symbolic shapes"
_PLAIN = "dynamo captures device tensors as plain tensors, not as an unknown subclass"
_PLACEHOLDERS = "placeholders of torch's lazy modules can belong to the device"
_SAVED = "torch.save writes device tensors as CPU tensors, which load anywhere"
_SEEDS = "torch.manual_seed seeds the device's random numbers too"
_NO_SPMD = "torch leaves DTensors of xla to SPMD; here they are as on other devices"

PATCHES = (
    Patch("torch.Generator", "core.devices.torch_generator", "there is torch.Generator('xla')"),
    *(Patch(f"torch._C.{name}", _ACCELERATOR, _ACCELERATORS) for name in _ASKED_OF_C),
    *(
        Patch(
            f"torch._C.{name}", _ACCELERATOR, _ACCELERATORS, absent="torch 2.9 asks no such thing"
        )
        for name in _ASKED_LATER
    ),
    Patch("torch.Tensor.pin_memory", _ACCELERATOR, "memory for xla is not pinned: it is a copy"),
    Patch(
        "torch.utils.data.dataloader._BaseDataLoaderIter.__init__",
        _ACCELERATOR,
        "nor are batches, so they are not copied once more",
    ),
    Patch("torch.Tensor.xla", _METHODS, "tensor.xla() is what tensor.cuda() is", is_new=True),
    Patch("torch.nn.GRU", "training.gru", "it is the class of torch_xla.experimental.gru"),
    Patch("torch.load", "core.torch_side.loading", "it takes map_location='xla'"),
    Patch("torch.manual_seed", _REGISTRATION, _SEEDS),
    Patch("torch.random.manual_seed", _REGISTRATION, _SEEDS),
    Patch(
        "torch.Tensor._make_wrapper_subclass",
        _SUBCLASSES,
        "autograd takes subclasses that wrap device tensors",
    ),
    Patch(
        "torch.Tensor._make_wrapper_subclass.*.device",
        _SUBCLASSES,
        "such a subclass says on which xla device it is",
        WRAPPED,
        is_marked=True,
    ),
    Patch(
        "torch.nested._internal.sdpa.jagged_scaled_dot_product_attention",
        "core.torch_side.nested_attention",
        "attention of jagged nested tensors on the device",
        NESTED,
    ),
    *(
        Patch(
            f"torch.autograd.forward_ad.{name}_dual_level",
            "core.composites.attention",
            "linear layers have forward derivatives on the device",
        )
        for name in ("enter", "exit")
    ),
    Patch(
        "torch.set_float32_matmul_precision",
        "core.devices.precision",
        "the precision of matrix products holds for the device too",
    ),
    *(
        Patch(target, "core.jax_side.higher_order", why)
        for why, targets in (
            (_CONTROL_FLOW, ("torch.cond", *_CONTROL_FLOWS)),
            (_CAPTURED, ("torch._higher_order_ops.*.create_bw_fn",)),
        )
        for target in targets
    ),
    Patch(
        "torch._library.simple_registry.find_torch_dispatch_rule",
        _REGISTRATION,
        "nobody enters such rules for our class, and looking for one takes long",
    ),
    Patch("torch.nn.Module._apply", _MOVED, "parameters on the device keep their attributes"),
    Patch(
        "torch.nn.Module.to",
        _MOVED,
        "a module goes to the device after a forward pass on the CPU too",
    ),
    Patch(
        "torch.nn.modules.module.is_traceable_wrapper_subclass",
        _MOVED,
        "Module.to swaps parameters in place, so that their identity and ties survive",
    ),
    Patch("torch.serialization._save", _METHODS, _SAVED),
    Patch("torch.serialization._legacy_save", _METHODS, _SAVED),
    Patch(
        "torch.nn.parameter.UninitializedTensorMixin.__torch_function__",
        _LAZY_MODULES,
        _PLACEHOLDERS,
    ),
    Patch("torch.nn.parameter.UninitializedTensorMixin.materialize", _LAZY_MODULES, _PLACEHOLDERS),
    Patch("torch.nn.parameter.UninitializedParameter.__new__", _LAZY_MODULES, _PLACEHOLDERS),
    Patch("torch.nn.parameter.UninitializedParameter.__deepcopy__", _LAZY_MODULES, _PLACEHOLDERS),
    Patch("torch.nn.parameter.UninitializedBuffer.__new__", _LAZY_MODULES, _PLACEHOLDERS),
    Patch("torch.utils._foreach_utils._foreach_supported_types", _OPTIMIZERS, _GROUPED),
    Patch(
        "torch.utils._foreach_utils._get_foreach_kernels_supported_devices", _OPTIMIZERS, _GROUPED
    ),
    Patch("torch.utils._foreach_utils._get_fused_kernels_supported_devices", _OPTIMIZERS, _GROUPED),
    Patch("torch.optim.optimizer._foreach_supported_types", _OPTIMIZERS, _GROUPED),
    Patch("torch.optim.optimizer._get_foreach_kernels_supported_devices", _OPTIMIZERS, _GROUPED),
    Patch("torch.optim.optimizer._get_fused_kernels_supported_devices", _OPTIMIZERS, _GROUPED),
    Patch("torch.optim.*._get_capturable_supported_devices", _OPTIMIZERS, _GROUPED),
    Patch("torch.optim.adam._multi_tensor_adam", _OPTIMIZERS, "a whole Adam update is one row"),
    Patch("torch.optim.sgd._multi_tensor_sgd", "core.composites.sgd", "so is one of SGD"),
    Patch(
        "torch.nn.LinearCrossEntropyOptions._adjust",
        "core.composites.chunked_losses",
        "the device takes what torch chooses for the CPU: sums in float32",
        absent="torch before 2.13 has no such loss",
    ),
    Patch(
        "torch.nn.SyncBatchNorm.forward",
        "ranks.sync_batch_norm",
        "it takes device tensors, and the statistics of all ranks are rows of the trace",
    ),
    Patch(
        "torch.distributed.device_mesh.DeviceMesh.__init__",
        "ranks.c10d.device_mesh",
        "torch leaves a mesh of xla without process groups and coordinates",
    ),
    Patch(
        "torch.distributed.distributed_c10d._FR_SELF_RECORDING_BACKENDS",
        "ranks.c10d.backend",
        "torch's flight recorder hooks into groups of C++, and raises for others",
        absent="torch before 2.15 has no recorder for every backend",
    ),
    Patch(
        "torch.distributed.tensor._api.distribute_tensor.__code__",
        _DTENSORS,
        _NO_SPMD,
        FIRST_MESH,
    ),
    Patch(
        "torch.distributed.tensor._api.distribute_module.__code__",
        _DTENSORS,
        _NO_SPMD,
        FIRST_MESH,
    ),
    Patch(
        "torch.distributed.tensor.DTensor._op_dispatcher._custom_op_handlers",
        _DTENSORS,
        "operators that arrive on this device alone, and torch has no sharding for",
        FIRST_MESH,
    ),
    Patch(
        "torch.distributed.tensor.DTensor.device",
        _DTENSORS,
        "a DTensor is where its local tensor is",
        FIRST_MESH,
    ),
    Patch(
        "torch.distributed._functional_collectives._maybe_wrap_tensor",
        "ranks.c10d.functional",
        "autograd ends the process at a result that is to be waited for",
        absent="its module is loaded with ours",
        until="2.11",
    ),
    Patch(
        "torch.distributed.tensor._random._rng_tracker",
        _DTENSORS,
        "random numbers of DTensors are the same for the same shard",
        FIRST_MESH,
    ),
    Patch(
        "torch._dynamo.variables.builder.VariableBuilder._type_dispatch",
        _IN_DYNAMO,
        _PLAIN,
        DYNAMO,
    ),
    Patch("torch._dynamo.variables.builder.infer_subclass_type", _IN_DYNAMO, _PLAIN, DYNAMO),
    Patch(
        "torch._compile._disable_dynamo.*.__dynamo_disable",
        _WITHOUT_DYNAMO,
        _NO_DYNAMO,
        is_marked=True,
    ),
    Patch("torch.optim.*._use_grad.__code__", _WITHOUT_DYNAMO, _NO_DYNAMO, is_marked=True),
    Patch("torch._prims_common.*.__code__", _WITHOUT_SYMPY, _NO_SYMPY, is_marked=True),
    Patch(
        "torch.distributed.tensor._api.DTensor.__bases__",
        "core.unimported.without_dtensor",
        "DTensor is not imported for the first device tensor, which C++ compares with it",
        DTENSOR,
        since="2.10",
    ),
    Patch(
        "torch._subclasses.fake_tensor.FakeTensor.__new__",
        _IN_DYNAMO,
        'a fake tensor of "xla" is of the present device, as one of "cuda" is',
    ),
    Patch(
        "torch.distributed.fsdp._common_utils._FSDPDeviceHandle.from_device",
        "ranks.c10d.torch_fsdp",
        "FSDP makes devices of bare numbers, and waits for the device so as not to run ahead",
        TORCHS_FSDP,
    ),
    Patch(
        "torch.distributed.distributed_c10d._world",
        "ranks.c10d.thread_worlds",
        "each thread that is a rank has process groups of its own",
        THREADS,
    ),
    Patch(
        "torch.amp.GradScaler._lazy_init_scale_growth_tracker",
        "core.composites.optimizer_states",
        "rows that make the scale would be in the program of the first step alone",
    ),
    Patch(
        "torch.amp.GradScaler._unscale_grads_",
        "ranks.sharded_grad_scaler",
        "ranks that hold parts of one model skip the same steps",
        SHARDED_GRADIENTS,
    ),
    Patch(
        "torch._TorchCompileInductorWrapper.__call__",
        "dynamo.default_backend",
        "graphs of device tensors go to openxla where torch would take inductor",
    ),
    *(
        Patch(
            f"torch.nn.attention.flex_attention.{name}",
            "dynamo.flex_attention",
            _FLEX_ATTENTION,
            FLEX,
            is_new=name.startswith("_"),
        )
        for name in (
            "_flex_attention_of_xla",
            "_flex_attention_elsewhere",
            "flex_attention.__code__",
            "_create_block_mask_of_xla",
            "_create_block_mask_elsewhere",
            "create_block_mask.__code__",
        )
    ),
    Patch(
        "jax._src.compiler.backend_compile_and_load",
        "core.kept.compiling_apart",
        "XLA compiles on a thread of its own, where no signal ends the call in the middle",
        DEVICES,
        absent="a JAX that compiles by another function does so on the main thread",
    ),
    Patch(
        "jaxlib._profiler.ProfilerSession",
        "debug.profiler_sessions",
        "a profile of the program's own ends the one that was asked for: XLA takes one at a time",
        ASKED_PROFILE,
    ),
)
