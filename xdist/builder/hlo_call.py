"""HLO modules called from JAX functions.

A module becomes a function of the program that calls it, so XLA sees through it. It has no
gradient.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func

from torch_xdist.core.programs.jax_internals import stablehlo_of_proto
from torch_xdist.errors import ArgumentError


@dataclass(frozen=True, slots=True)
class _Module:
    """StableHLO with one function `main`, and the types of its results."""

    code: bytes
    results: tuple[Any, ...] = field(compare=False)


_call_p = Primitive("call_hlo")
_call_p.multiple_results = True


@_call_p.def_abstract_eval
def _types(*arguments: Any, module: _Module) -> list[Any]:
    return [jax.core.ShapedArray(r.shape, r.dtype) for r in module.results]


def _lower(ctx: Any, *arguments: Any, module: _Module) -> Any:
    into = ctx.module_context
    code = ir.Module.parse(module.code, context=into.module.context)
    results = _main_type(code).results
    name = mlir.merge_mlir_modules(into.module, "called_hlo", code, dst_symtab=into.symbol_table)
    return func.CallOp(results, ir.FlatSymbolRefAttr.get(name), arguments).results


mlir.register_lowering(_call_p, _lower)


def call_of_hlo(proto: bytes) -> tuple[Callable[..., Any], list[jax.ShapeDtypeStruct]]:
    """A serialized HLO module as a function of arrays, and the types it takes.

    The function returns an array, or a tuple of them.
    """
    code = stablehlo_of_proto(proto)
    with mlir.make_ir_context():
        main = _main_type(ir.Module.parse(code))
        inputs, outputs = [list(map(_type, types)) for types in (main.inputs, main.results)]
    module = _Module(code, tuple(outputs))

    def call(*arguments: Any) -> Any:
        found = _call_p.bind(*arguments, module=module)
        return tuple(found) if len(found) != 1 else found[0]

    return call, inputs


def _main_type(code: Any) -> Any:
    main: Any = ir.SymbolTable(code.operation)["main"]
    return main.type


def _type(type_: Any) -> jax.ShapeDtypeStruct:
    dtype = dtype_of(type_)
    return jax.ShapeDtypeStruct(tuple(ir.RankedTensorType(type_).shape), dtype)


def dtype_of(type_: Any) -> str:
    """numpy's name of what MLIR's tensors of a type hold.

    Raises ArgumentError for types that arrays do not have.
    """
    element = str(type_.element_type) if isinstance(type_, ir.RankedTensorType) else ""
    if element not in _ELEMENTS:
        raise ArgumentError(
            f"StableHLO: main has a parameter or a result {type_}, which no array holds; it needs"
            " numbers or bools"
        )
    return _ELEMENTS[element]


_ELEMENTS = {
    "i1": "bool", "ui8": "uint8", "ui16": "uint16", "ui32": "uint32", "ui64": "uint64",
    "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64",
    "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64",
    "complex<f32>": "complex64", "complex<f64>": "complex128",
    "f8E4M3FN": "float8_e4m3fn", "f8E5M2": "float8_e5m2",
    "f8E4M3FNUZ": "float8_e4m3fnuz", "f8E5M2FNUZ": "float8_e5m2fnuz",
}  # fmt: skip
