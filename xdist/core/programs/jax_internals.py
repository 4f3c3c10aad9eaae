"""What is asked of JAX beside its public interface, each with what is done where it is gone."""

import bisect
import contextlib
import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax._src import config, pjit

from torch_xdist.errors import ReleaseError

try:
    from jaxlib import _jax  # type: ignore[attr-defined]
except ImportError:
    _jax = None  # type: ignore[assignment]
try:
    from jaxlib import _hlo  # type: ignore[attr-defined]
except ImportError:
    # In jax 0.10.0 its names are there.
    _hlo = _jax
try:
    from jaxlib.mlir import ir
except ImportError:
    ir = None  # type: ignore[assignment]
try:
    from jax._src.lax import windowed_reductions
except ImportError:
    windowed_reductions = None  # type: ignore[assignment]
try:
    from jax._src.interpreters import mlir
except ImportError:
    mlir = None  # type: ignore[assignment]


def callable_of(compiled: jax.stages.Compiled) -> Callable[..., Any]:
    """A compiled program as JAX's C++ calls it, where it does, without Python in between."""
    try:
        fast = compiled._executable.create_cpp_call(compiled._params)
    except AttributeError:
        fast = None
    return compiled if fast is None else fast


# No public call does this alone. JAX's own function around it looks at each array first.
_batched_device_put: Any = getattr(_jax, "batched_device_put", None)


@functools.cache
def put_on(device: jax.Device) -> Callable[[np.ndarray], Any]:
    """What makes an array on a device of one of numpy's that nobody writes to.

    It gives what `jax.device_put` does, without the search for a sharding: 4 us instead of 30.
    """
    if _batched_device_put is None:
        return functools.partial(jax.device_put, device=device)
    sharding, devices = jax.sharding.SingleDeviceSharding(device), [device]

    def put(array: np.ndarray) -> Any:
        kind = _kind(array.shape, array.dtype)
        return _batched_device_put(kind, sharding, [array], devices, True)

    return put


@functools.lru_cache(maxsize=1024)
def _kind(shape: tuple[int, ...], dtype: np.dtype) -> jax.core.ShapedArray:
    return jax.core.ShapedArray(shape, dtype)


class _Numbers:
    """The numbers that a program is fed with, on its device; those of the last run are kept there.

    A learning rate is the same for many steps. Programs do not get these arrays as theirs.
    """

    __slots__ = ("_last", "_put")

    def __init__(self, put: Callable[[np.ndarray], jax.Array]) -> None:
        self._put = put
        self._last: dict[np.dtype, tuple[bytes, jax.Array]] = {}

    def __call__(self, numbers: np.ndarray) -> jax.Array:
        # By their bits: -0.0 is another number than 0.0, and NaN the same as NaN.
        bits = numbers.tobytes()
        last = self._last.get(numbers.dtype)
        if last is not None and last[0] == bits:
            return last[1]
        made = self._put(numbers)
        self._last[numbers.dtype] = bits, made
        return made


# By function that JAX traced, and by types of its arguments: the states it traced them in.
_TRACED: Any = getattr(pjit, "_seen_qdds", None)


def forget_types() -> None:
    """Drop the types without states; JAX keeps them as long as a function, its own for ever."""
    for types in [*getattr(_TRACED, "data", {}).copy().values()]:
        for type_, states in types.copy().items():
            if not any(states):
                types.pop(type_, None)


# What XLA's client says of an array that was deleted, or given away before.
_DELETED = "shards, got: [0]"


class Direct(NamedTuple):
    """A compiled program as XLA's client runs it, without JAX's look at each argument.

    Attributes:
        execute: takes a list of arrays, and returns what `handlers` make JAX's arrays of.
        kept: which of the arguments the program reads, in order.
        put: makes an array on the program's device of its numbers, an array of numpy's.
    """

    execute: Callable[[list[Any]], Any]
    handlers: Sequence[Any]
    kept: Sequence[int]
    put: Callable[[np.ndarray], jax.Array]

    def run(self, arguments: Sequence[Any], results: list[Any]) -> None:
        """`results.append(...)` with the list of results; as `in_one_call`, for Ctrl-C.

        Args:
            arguments: two lists of arrays of the device, and numpy's arrays.
        """
        donated, kept, *numbers = arguments
        operands = [*donated, *kept]
        count = len(operands)
        read = bisect.bisect_left(self.kept, count)
        if read < count:
            operands = [operands[place] for place in self.kept[:read]]
        operands += [self.put(numbers[place - count]) for place in self.kept[read:]]
        made: list[Any] = []
        try:
            in_one_call(made, self.execute, operands)
        except Exception as error:
            if _DELETED in str(error):
                # JAX's own words for it, which name the array.
                for operand in operands:
                    operand.addressable_data(0)
            raise
        finally:
            # Also where Ctrl-C came in between: the operands are gone.
            if made:
                in_one_call(results, made[0].consume_with_handlers, self.handlers)


def direct_call(compiled: jax.stages.Compiled, device: jax.Device) -> Direct | None:
    """How a program of one device is run directly; None where this JAX has it another way."""
    try:
        call: Any = compiled._executable.unsafe_call  # type: ignore[attr-defined]
        has_more = call.ordered_effects or call.has_unordered_effects or call.mut
        has_more = has_more or call.has_host_callbacks or call.pgle_profiler is not None
        if has_more or compiled._params.const_args or _batched_device_put is None:
            return None
        put = _Numbers(put_on(device))
        execute = call.xla_executable.execute_sharded
        return Direct(execute, call.out_handler.handlers, sorted(call.kept_var_idx), put)
    except AttributeError:
        return None


def checks_results() -> bool:
    """Whether JAX shall look for NaN or infinity in what programs return."""
    return bool(jax.config.jax_debug_nans or jax.config.jax_debug_infs)  # type: ignore[attr-defined]


# On a module: the pass of XLA's that it does without.
_WITHOUT = "torch_xdist.compile_without"
# XLA's option that lists such passes.
PASSES = "xla_disable_hlo_passes"


def compile_without(ctx: Any, name: str) -> None:
    """From a lowering: its module is compiled without the pass of XLA's of this name."""
    ctx.module_context.module.operation.attributes[_WITHOUT] = ir.StringAttr.get(name)


# What XLA says of an option, and of a value of one, that another release of it has.
_NOT_OPTIONS = ("No such compile option", "is not a valid enum value")
# Options and values that this XLA was found not to have.
_UNKNOWN: set[tuple[str, Any]] = set()


def compiled(
    lowered: jax.stages.Lowered, options: Mapping[str, Any] | None = None
) -> jax.stages.Compiled:
    """A lowered program compiled with those of these options that this XLA has."""
    options = joined(options or {}, options_in(lowered))
    while True:
        known = dict(option for option in options.items() if option not in _UNKNOWN)
        try:
            return lowered.compile(compiler_options=known or None)
        except jax.errors.JaxRuntimeError as error:
            refused = _refused(str(error), known)
            if not refused:
                raise
            _UNKNOWN.update(refused)


def _refused(said: str, options: Mapping[str, Any]) -> Collection[tuple[str, Any]]:
    """Which of the options XLA has not, by its words: one of them, or all where it names none."""
    if not any(words in said for words in _NOT_OPTIONS):
        return ()
    return [option for option in options.items() if option[0] in said] or options.items()


def joined(options: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Both; passes that both leave out are one list."""
    both = [part[PASSES] for part in (options, more) if PASSES in part]
    return {**options, **more, **({PASSES: ",".join(both)} if both else {})}


def options_in(lowered: jax.stages.Lowered) -> dict[str, Any]:
    """The options that lowerings asked for, by name (`compile_without`)."""
    module: Any = lowered.compiler_ir("stablehlo")
    attributes = module.operation.attributes
    return {PASSES: attributes[_WITHOUT].value} if _WITHOUT in attributes else {}


def module_bytes(lowered: jax.stages.Lowered) -> bytes:
    """A lowered program in MLIR's bytecode, which XLA's clients compile."""
    need(mlir and hasattr(mlir, "module_to_bytecode"), "the bytes of a program")
    module: Any = lowered.compiler_ir("stablehlo")
    return bytes(mlir.module_to_bytecode(module))


_ALIAS = "tf.aliasing_output"


def alias(lowered: Any, pairs: Mapping[int, int]) -> None:
    """Let these results of a lowered program, by place, be written over these arguments.

    Only among the arguments that JAX has given up to results; the rest keep or change theirs, so
    that as many are written over as before. Where this JAX has it another way, nothing changes.
    """
    module = lowered.compiler_ir("stablehlo")
    named = {op.attributes["sym_name"].value: op for op in module.body.operations}
    kept = getattr(getattr(lowered, "_lowering", None), "compile_args", {}).get("kept_var_idx")
    main = named.get("main")
    if main is None or kept is None or "arg_attrs" not in main.attributes:
        return
    told = [{part.name: part.attr for part in each} for each in main.attributes["arg_attrs"]]
    given = {place: at for at, place in enumerate(sorted(kept))}
    before = {at: part[_ALIAS].value for at, part in enumerate(told) if _ALIAS in part}
    inputs, outputs = main.type.inputs, main.type.results
    after = {}
    for place, out in pairs.items():
        at = given.get(place, -1)
        if at in before and inputs[at] == outputs[out]:
            after[at] = out
    free = sorted({*before.values()} - {*after.values()})
    for at in before:
        if at not in after:
            same = [n for n in free if inputs[at] == outputs[n]]
            if not same:
                return
            free.remove(same[0])
            after[at] = same[0]
    with module.context:
        number = ir.IntegerType.get_signless(32)
        for at, out in after.items():
            told[at][_ALIAS] = ir.IntegerAttr.get(number, out)
        main.attributes["arg_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(part) for part in told])


def shardings_in_hlo() -> contextlib.AbstractContextManager[Any]:
    """Inside it JAX lowers shardings as HLO has them, not for Shardy, where it still can."""
    state = getattr(config, "use_shardy_partitioner", None)
    return contextlib.nullcontext() if state is None else state(False)


_UNTOLD = contextlib.nullcontext()


def in_profile(name: str) -> contextlib.AbstractContextManager[Any]:
    """A named block in the profile that runs; where none does, nothing."""
    block = jax.profiler.TraceAnnotation
    return block(name) if block.is_enabled() else _UNTOLD


class Location(NamedTuple):
    """Where an operation comes from.

    Attributes:
        type, name: the op_type and the op_name of XLA's metadata.
        places: (function, file, line) of each frame, innermost first.
    """

    type: str
    name: str
    places: Sequence[tuple[str, str, int]]


def relocate(lowered: Any, location_of: Callable[[str], Location | None]) -> None:
    """Give the operations of a lowered program other locations, by the names JAX gave them.

    One without a new location keeps its name alone. Where JAX cannot, all stay as they are.
    """
    settable = getattr(getattr(ir, "_OperationBase", None), "location", None)
    if getattr(settable, "fset", None) is None:
        return
    module = lowered.compiler_ir("stablehlo")
    with module.context:
        nowhere = ir.Location.unknown()
        made: dict[str, Any] = {}

        def moved(old: Any) -> Any:
            name = old.name_str if _is_name(old) else ""
            if name not in made:
                found = location_of(name)
                made[name] = _named(name, nowhere) if found is None else _mlir_location(found)
            return made[name]

        _relocate_inside(module.operation, moved, nowhere)


def _relocate_inside(operation: Any, moved: Callable[[Any], Any], nowhere: Any) -> None:
    for region in operation.regions:
        for block in region.blocks:
            for argument in block.arguments:
                argument.set_location(nowhere)
            for inner in block.operations:
                inner.operation.location = moved(inner.location)
                _relocate_inside(inner.operation, moved, nowhere)


def _is_name(location: Any) -> bool:
    """Whether a location is a name (in jax 0.10.0 all are of one class)."""
    kind = getattr(ir, "NameLoc", None)
    return bool(location.is_a_name()) if kind is None else isinstance(location, kind)


def _named(name: str, child: Any) -> Any:
    return ir.Location.name(name, childLoc=child) if name else child


def _mlir_location(location: Location) -> Any:
    """As XLA reads it: the type with a colon, the name, and the frames."""
    frames = [
        ir.Location.name(function, childLoc=ir.Location.file(file, line, 0))
        for function, file, line in location.places
    ]
    inner: Any = ir.Location.unknown()
    if frames:
        inner = ir.Location.callsite(frames[0], frames[1:]) if frames[1:] else frames[0]
    return _named(f"{location.type}:", _named(location.name, inner))


def hlo_of_module(
    module: str, *, in_tuple: bool = False, with_metadata: bool = False
) -> str | None:
    """A StableHLO module as HLO text with the shapes of operands; None where JAX cannot.

    Args:
        in_tuple: one result is a tuple as well.
        with_metadata: the text says where operations come from.
    """
    try:
        options = _hlo.HloPrintOptions()
        options.print_percent = options.print_operand_shape = True
        options.print_metadata = with_metadata
        computation = _jax.mlir.mlir_module_to_xla_computation(
            module, use_tuple_args=False, return_tuple=in_tuple
        )
        return str(computation.get_hlo_module().to_string(options))
    except AttributeError:
        return None


def proto_of_module(module: str) -> bytes:
    """A StableHLO module as a serialized HloModuleProto."""
    need(_jax and hasattr(_jax.mlir, "mlir_module_to_xla_computation"), "HLO of a program")
    computation = _jax.mlir.mlir_module_to_xla_computation(
        module, use_tuple_args=False, return_tuple=False
    )
    return bytes(computation.as_serialized_hlo_module_proto())


def stablehlo_of_proto(proto: bytes) -> bytes:
    """A serialized HloModuleProto as StableHLO."""
    need(_jax and hasattr(_jax.mlir, "hlo_to_stablehlo"), "HLO in a program")
    return bytes(_jax.mlir.hlo_to_stablehlo(proto))


def select_and_scatter(*arguments: Any) -> Any:
    """XLA's SelectAndScatter (operand, select, sizes, strides, padding, source, start, scatter)."""
    of_jax = getattr(windowed_reductions, "_select_and_scatter", None)
    need(of_jax, "SelectAndScatter")
    return of_jax(*arguments)  # type: ignore[misc]


def sizes_at_run_time(ctx: Any, shape: tuple[Any, ...]) -> Any:
    """A shape with open sizes as the array that it is when the program runs."""
    of_jax = getattr(mlir, "eval_dynamic_shape_as_tensor", None)
    need(of_jax, "sizes that are open in a program")
    return of_jax(ctx, shape)  # type: ignore[misc]


def type_in(ctx: Any, array: Any) -> Any:
    """The MLIR type of an abstract array, in the module of a lowering's context."""
    of_jax = getattr(mlir, "aval_to_ir_type", None)
    need(of_jax, "types of MLIR for arrays")
    # Newer releases keep the types of a module.
    has_module = len(inspect.signature(of_jax).parameters) > 1  # type: ignore[arg-type]
    return of_jax(ctx.module_context, array) if has_module else of_jax(array)  # type: ignore[misc]


def is_export(ctx: Any) -> bool:
    """Whether a lowering's context is of a program that is to be kept, and not run here."""
    of_jax = getattr(ctx.module_context, "lowering_parameters", None)
    return getattr(of_jax, "for_export", True)


def with_known_sizes(module: Any) -> Any:
    """A StableHLO module with open sizes, for those that its main function says."""
    of_jax = getattr(mlir, "refine_polymorphic_shapes", None)
    need(of_jax, "way to run an artifact with open sizes")
    return of_jax(module)  # type: ignore[misc]


def need(found: Any, what: str) -> None:
    """Raise ReleaseError where this JAX lacks something that nothing else does."""
    if not found:
        raise ReleaseError(f"jax {jax.__version__} has no {what}; install jax 0.10.2, which has")


def in_one_call(results: list[Any], function: Callable[..., Any], *arguments: Any) -> None:
    """`results.append(function(*arguments))`, with nothing of Python in between for a C function.

    After a call Python looks for signals before it stores what the call returned.
    """
    results.extend(map(function, *zip(arguments)))
