"""StableHLO modules as MLIR: what JAX lowered, made what torch_xla's users look for.

Constants have the shape they are used in, bodies of composites are named after them, and the text
that `write_mlir_debuginfo` was given is the location of its operation. Needs jax alone.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jax.interpreters import mlir
from jax.interpreters.mlir import ir
from jaxlib.mlir.dialects import stablehlo
from jaxlib.mlir.passmanager import PassManager

from torch_xdist.builder.hlo_call import dtype_of
from torch_xdist.core.programs.jax_internals import with_known_sizes

try:
    # It lowers what refining leaves of JAX's own dialect; without it such a module is refused.
    from jax._src.export._export import _module_to_bytecode
except ImportError:
    _module_to_bytecode = None  # type: ignore[assignment]

# Around the text of a location on its way through JAX, as part of a scope's name.
BEGIN, END = "<XLA_MLIR_DEBUGINFO_BEGIN>", "<XLA_MLIR_DEBUGINFO_END>"
_CLEANED = "builtin.module(func.func(canonicalize,cse),symbol-dce)"
# A location as MLIR writes it in a text: loc("name"(#loc3)) or loc("name").
_LOCATION = re.compile(r'loc\("((?:[^"\\]|\\.)*)"(?:\(#loc\d*\))?\)')


@dataclass(frozen=True, slots=True)
class Signature:
    """One parameter or result of a function; None stands for a size that is open."""

    shape: tuple[int | None, ...]
    dtype: str

    def fits(self, shape: Sequence[int]) -> bool:
        """Whether an array of this shape is one."""
        return len(shape) == len(self.shape) and all(
            size is None or size == given for given, size in zip(shape, self.shape)
        )

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join('?' if s is None else str(s) for s in self.shape)}]"


def tidied(module: str) -> str:
    """A module's text, cleaned up, with its locations."""
    with mlir.make_ir_context():
        parsed = ir.Module.parse(_with_given_locations(module))
        for operation in [*_operations(parsed.operation)]:
            if operation.name == "stablehlo.broadcast_in_dim":
                _fold_constant(operation)
        _name_bodies(parsed)
        PassManager.parse(_CLEANED).run(parsed.operation)
        return str(parsed.operation.get_asm(enable_debug_info=True))


def text_of(module: str, *, with_locations: bool) -> str:
    """A module's text; each location stands behind its operation, or there are none."""
    with mlir.make_ir_context():
        parsed = ir.Module.parse(module)
        return str(
            parsed.operation.get_asm(
                enable_debug_info=with_locations, pretty_debug_info=with_locations
            )
        )


def version() -> str:
    """The version of StableHLO that artifacts are written in, as "1.13.0"."""
    wanted = stablehlo.StablehloCompatibilityRequirement.WEEK_4
    return str(stablehlo.get_version_from_compatibility_requirement(wanted))


def bytecode_of(module: str) -> bytes:
    """A module's text as a portable artifact of StableHLO."""
    if _module_to_bytecode is None:
        return bytes(stablehlo.serialize_portable_artifact_str(module, version()))
    with mlir.make_ir_context():
        return bytes(_module_to_bytecode(ir.Module.parse(module)))


def module_of(bytecode: bytes) -> str:
    """A portable artifact of StableHLO as a module's text."""
    with mlir.make_ir_context() as context:
        return str(stablehlo.deserialize_portable_artifact(context, bytecode))


def signature_of(module: str) -> tuple[list[Signature], list[Signature]]:
    """What a module's main function takes, and what it gives.

    Raises ArgumentError for types that arrays do not have.
    """
    with mlir.make_ir_context():
        parsed = ir.Module.parse(module)
        main: Any = ir.SymbolTable(parsed.operation)["main"]
        type_ = main.type
        return [*map(_signature, type_.inputs)], [*map(_signature, type_.results)]


def _signature(type_: Any) -> Signature:
    dtype, tensor = dtype_of(type_), ir.RankedTensorType(type_)
    shape = tuple(
        None if tensor.is_dynamic_dim(dim) else tensor.get_dim_size(dim)
        for dim in range(tensor.rank)
    )
    return Signature(shape, dtype)


def with_sizes(module: str, shapes: Sequence[Sequence[int]]) -> str:
    """A module that leaves sizes open, for parameters of these shapes."""
    with mlir.make_ir_context(), ir.Location.unknown():
        parsed = ir.Module.parse(module)
        symbols = ir.SymbolTable(parsed.operation)
        main: Any = symbols["main"]
        inputs, results = [*main.type.inputs], [str(result) for result in main.type.results]
        symbols.set_symbol_name(main, "of_any_size")
        main.attributes["sym_visibility"] = ir.StringAttr.get("private")
        known = [
            ir.RankedTensorType.get(shape, ir.RankedTensorType(type_).element_type)
            for shape, type_ in zip(shapes, inputs)
        ]
        parsed = ir.Module.parse(
            _with_caller(str(parsed), [*map(str, known)], [*map(str, inputs)], results)
        )
        return str(with_known_sizes(parsed))


def _with_caller(
    module: str, known: Sequence[str], inputs: Sequence[str], results: Sequence[str]
) -> str:
    """A module with a main function that calls `of_any_size` with arrays of known sizes."""
    named = [f"%arg{i}: {type_}" for i, type_ in enumerate(known)]
    lines = [
        f"%{i} = stablehlo.convert %arg{i} : ({type_}) -> {open_}"
        for i, (type_, open_) in enumerate(zip(known, inputs))
    ]
    given = ", ".join(f"%{i}" for i in range(len(known)))
    types, outs = ", ".join(inputs), ", ".join(results)
    lines.append(f"%r:{len(results)} = call @of_any_size({given}) : ({types}) -> ({outs})")
    returned = ", ".join(f"%r#{i}" for i in range(len(results)))
    lines.append(f"return {returned} : {outs}")
    main = f"func.func public @main({', '.join(named)}) -> ({outs}) {{\n" + "\n".join(lines) + "}\n"
    return module[: module.rindex("}")] + main + "}\n"


def _operations(operation: Any) -> Iterator[Any]:
    """All operations inside one, in order."""
    for region in operation.regions:
        for block in region:
            for inner in block:
                yield inner.operation
                yield from _operations(inner.operation)


def _fold_constant(operation: Any) -> None:
    """Put a constant in the place of a number that is broadcast to a known shape."""
    source = operation.operands[0].owner
    if isinstance(source, ir.Block) or source.name != "stablehlo.constant":
        return
    value = source.attributes["value"]
    type_ = ir.RankedTensorType(operation.results[0].type)
    if not value.is_splat or not type_.has_static_shape:
        return
    splat = ir.DenseElementsAttr.get_splat(type_, value.get_splat_value())
    with ir.InsertionPoint(operation), operation.location:
        constant = stablehlo.ConstantOp(splat)
    operation.results[0].replace_all_uses_with(constant.result)
    operation.erase()


def _name_bodies(module: Any) -> None:
    """Call the bodies of composites NAME.impl, NAME.impl_0, ..."""
    symbols = ir.SymbolTable(module.operation)
    named: dict[str, str] = {}
    taken: set[str] = set()
    for operation in _operations(module.operation):
        if operation.name != "stablehlo.composite":
            continue
        old = ir.FlatSymbolRefAttr(operation.attributes["decomposition"]).value
        if old not in named:
            base = ir.StringAttr(operation.attributes["name"]).value + ".impl"
            tries = (base if i < 0 else f"{base}_{i}" for i in range(-1, len(taken) + 1))
            named[old] = next(name for name in tries if name not in taken)
            taken.add(named[old])
            symbols.set_symbol_name(symbols[old], named[old])
        operation.attributes["decomposition"] = ir.FlatSymbolRefAttr.get(named[old])


def _with_given_locations(module: str) -> str:
    """A module's text in which the text between our tokens is all of a location."""

    def shortened(found: "re.Match[str]") -> str:
        name = found[1]
        if BEGIN not in name:
            return found[0]
        return f'loc("{name.rpartition(BEGIN)[2].partition(END)[0]}")'

    return _LOCATION.sub(shortened, module)
