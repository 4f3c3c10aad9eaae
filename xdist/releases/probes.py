"""What this package needs of torch and jax beside their public names, each as a probe.

`require` asks all of them before anything is registered, so that a release that does not fit is
told in one error instead of by whatever is missing first. A hook that is read somewhere in the
package stands here; what is changed stands in `patches`, and is probed as well. A probe only looks:
it takes microseconds, starts no device and changes nothing.
"""

import ctypes
import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from torch_xdist.errors import ReleaseError
from torch_xdist.releases import patches, tested


class Probe(NamedTuple):
    """One hook: where it is looked for, and what it is needed for."""

    path: str
    needed_for: str
    otherwise: str = ""  # what is done where it is missing; empty: nothing can be
    check: Callable[[], bool] | None = None  # more than that it is there
    when: str = "import"


class Finding(NamedTuple):
    """What a probe found."""

    probe: Probe
    is_there: bool

    @property
    def is_fatal(self) -> bool:
        """Whether the package cannot work like this."""
        return not self.is_there and not self.probe.otherwise


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
    make = torch.Tensor._make_wrapper_subclass
    # The order in which core.devices.tensor gives them.
    values = (None, None, torch.float32, torch.strided, torch.device("lazy", 0), False, False)
    tensor = make(_Wrapped, (1,), (1,), *values, None, False, False, any_keys - any_keys)
    return tensor.device.type == "lazy"


def _has_autocast_of_xla() -> bool:
    library = torch.library.Library("_", "IMPL", "AutocastXLA")
    del library
    # Between a wrapper on `xla` and one on `lazy`, which `core.devices.tensor` takes for the key.
    make = torch.Tensor._make_wrapper_subclass
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
    Probe("torch._prims_common.ELEMENTWISE_TYPE_PROMOTION_KIND.NO_OPMATH", _PROMOTION),
    Probe("torch.utils._pytree.tree_flatten", "operands in lists and dicts are found"),
    Probe("torch.autograd.forward_ad._current_level", "attention leaves forward mode to torch"),
    Probe("torch.autograd.Variable._execution_engine.queue_callback", "FSDP ends its backward"),
    # torch: several ranks
    Probe("torch.distributed.Backend.register_backend", "the backend 'xla'"),
    Probe("torch.distributed.register_rendezvous_handler", "init_method='xla://'"),
    Probe("torch.distributed.distributed_c10d._resolve_process_group", "collectives by group name"),
    Probe("torch._C._distributed_c10d._create_work_from_future", "works that are complete"),
    Probe(
        "torch.distributed.tensor._api.distribute_tensor.__code__: 'xla'",
        "DTensors on the device",
        check=_names_detour,
        when=patches.FIRST_MESH,
    ),
    Probe(
        "torch.distributed.tensor._random._RNGStateTracker._distribute_region",
        "random numbers of DTensors",
        when=patches.FIRST_MESH,
    ),
    Probe("torch.amp.GradScaler._maybe_opt_step", "steps are skipped without a look at a value"),
    # jax
    Probe("jax.ffi.ffi_lowering", "collectives through shared memory"),
    Probe("jax.extend.core.Primitive", "collectives through shared memory"),
    Probe("jax.interpreters.mlir.register_lowering", "collectives through shared memory"),
    Probe("jax._src.distributed.global_state.client", "collectives between hosts"),
    Probe("jaxlib._jax.get_distributed_runtime_client", "collectives between hosts"),
    Probe("jaxlib._jax.get_distributed_runtime_service", "collectives between hosts"),
    Probe(
        "jax._src.config.trace_context",
        "programs are kept apart by all settings that they depend on",
        otherwise="they are kept apart by the precision of matrix products",
    ),
    Probe(
        "jax._src.interpreters.pxla.batched_device_put",
        "arrays go to a device without a check of each",
        otherwise="jax.device_put does it",
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
    Probe(
        "jaxlib.mlir.ir._OperationBase.location",
        "operations of programs have the user's lines (XLA_HLO_DEBUG)",
        otherwise="they have those of JAX",
    ),
    Probe(
        "jaxlib._profiler.ProfilerSession",
        "sessions and servers of the profiler",
        otherwise="a ReleaseError where one is started",
    ),
    Probe("jax._src.dispatch.wait_for_tokens", _LAUNCHER, otherwise="it is not called at exit"),
    Probe("jax._src.api.clean_up", _LAUNCHER, otherwise="it is not called at exit"),
    Probe("jax._src.xla_bridge.backends_are_initialized", _LAUNCHER),
    Probe("torch._C._len_torch_function_stack", _LAUNCHER),
    Probe("torch._C._len_torch_dispatch_stack", _LAUNCHER),
)


def _of_patch(patch: patches.Patch) -> Probe:
    path = patch.target.rpartition(".")[0] if patch.is_new else patch.target
    return Probe(path, patch.why, patch.absent, when=patch.when)


def findings(moments: set[str] | None = None) -> list[Finding]:
    """Every probe of these moments, with what it found; None: of all, which imports torch's FSDP.

    A patch that was made counts as found.
    """
    needed = [patch for patch in patches.PATCHES if patch.is_needed]
    asked = [*PROBES, *map(_of_patch, needed)]
    return [
        Finding(probe, _is_there(probe))
        for probe in asked
        if moments is None or probe.when in moments
    ]


def require(moment: str = "import") -> None:
    """Raise one error that lists every hook of this moment that is missing.

    Raises:
        ReleaseError: at least one is missing, and nothing can stand in for it.
    """
    missing = [finding.probe for finding in findings({moment}) if finding.is_fatal]
    if missing:
        raise ReleaseError(_text(missing))


def _text(missing: list[Probe]) -> str:
    found = tested.installed()
    hooks = "".join(f"\n  {probe.path}: {probe.needed_for}" for probe in missing)
    pairs = ", ".join(f"torch {c.torch} with jax {c.jax} (Python {c.python})" for c in tested.CELLS)
    return (
        f"torch-xdist {found['torch-xdist']} does not fit torch {found['torch']} with jax "
        f"{found['jax']} on Python {found['python']}: {len(missing)} of what it needs of them is "
        f"missing:{hooks}\nTested are {pairs}; install one of these pairs. "
        "`python -m torch_xdist.doctor` prints what else belongs into a bug report."
    )


def _is_there(probe: Probe) -> bool:
    try:
        if probe.check is not None:
            return probe.check()
        return _looked_up(probe.path)
    except Exception:
        # Whatever a release raises here, the hook is not as it is needed.
        return False


def _looked_up(path: str) -> bool:
    if "*" in path:
        return patches.has(path)
    for _ in range(2):
        try:
            owner, name = next(patches.places(path))
            return hasattr(owner, name)
        except AttributeError:
            _import_towards(path)
    return False


def _import_towards(path: str) -> None:
    """Import the modules on a path that nobody has imported so far."""
    parts = path.split(".")
    for end in range(2, len(parts)):
        try:
            importlib.import_module(".".join(parts[:end]))
        except ImportError:
            return
