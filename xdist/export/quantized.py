"""Quantizing: how StableHLO shows torch's `quantized_decomposed` operators, and calls of them.

They compute on integers (`ops/quantized`). In the text of a graph they are `uniform_quantize` and
`uniform_dequantize` between numbers and a quantized type, where scales and zero points are
known; jaxlib cannot hold such types, so the bytecode has the arithmetic.
"""

import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jax.extend.core import Primitive
from jax.interpreters import mlir

from torch_xdist.core.trace.plans import Param, Plan
from torch_xdist.dtypes import to_jax
from torch_xdist.errors import ArgumentError
from torch_xdist.export import jax_lowering

_OPERATORS = "torch.ao.quantization.fx._decomposed"
_PREFIX = "quantized_decomposed."
_TARGETS = {"quantize": "uniform_quantize", "dequantize": "uniform_dequantize"}
# The custom calls that `marked` leaves.
MARKS = tuple(_TARGETS.values())


@dataclass(frozen=True, slots=True)
class QuantizedType:
    """A quantized type: integers that stand for `(integer - zero point) * scale`.

    Attributes:
        axis: along which there is a scale for each place; None: one for all.
    """

    scales: tuple[float, ...]
    zero_points: tuple[int, ...]
    low: int
    high: int
    dtype: torch.dtype
    axis: int | None

    def __str__(self) -> str:
        storage = str(self.dtype).removeprefix("torch.")
        bits = storage.replace("uint", "u").replace("int", "i")
        about = torch.iinfo(self.dtype)
        if (self.low, self.high) != (about.min, about.max):
            bits += f"<{self.low}:{self.high}>"
        pairs = [
            f"{scale:e}" + (f":{zero}" if zero else "")
            for scale, zero in zip(self.scales, self.zero_points)
        ]
        if self.axis is None:
            return f"!quant.uniform<{bits}:f32, {pairs[0]}>"
        return f"!quant.uniform<{bits}:f32:{self.axis}, {{{','.join(pairs)}}}>"


def type_of(plan: Plan, known: Callable[[int], np.ndarray | None]) -> QuantizedType | None:
    """The quantized type of a row; None where it is none, or its scales are not known.

    `known` tells the value of an operand, None where only a run can.
    """
    if not is_quantized(plan):
        return None
    args: list[Any] = [known(a.index) if isinstance(a, Param) else a for a in plan.args[1:]]
    if args[0] is None or args[1] is None:
        return None
    axis = args.pop(2) if "per_channel" in plan.name else None
    scales, zero_points, low, high, dtype = args
    rank = len(plan.operand_types[0].shape)
    return QuantizedType(
        tuple(map(float, np.atleast_1d(scales))),
        tuple(map(int, np.atleast_1d(zero_points))),
        low,
        high,
        dtype,
        None if axis is None else axis % rank,
    )


def is_quantized(plan: Plan) -> bool:
    """Whether a row quantizes, or the other way round."""
    return plan.name.startswith((_PREFIX + "quantize_per", _PREFIX + "dequantize_per"))


_mark_p = Primitive("quantized")
_mark_p.def_abstract_eval(lambda x, *, target, type_, dtype: jax_lowering.shaped(x.shape, dtype))


def _mark_lowering(ctx: Any, x: Any, *, target: str, type_: str, dtype: Any) -> Any:
    return jax_lowering.custom_call(
        ctx,
        x,
        target=target,
        has_side_effect=False,
        backend_config=type_,
        api_version=0,
        frontend_attributes={},
    )


mlir.register_lowering(_mark_p, _mark_lowering)


def marked(plan: Plan, type_: QuantizedType, operand: Any) -> Any:
    """A row as `with_types` finds it in a text."""
    (out,) = plan.types
    assert out is not None
    target = _TARGETS[plan.name.removeprefix(_PREFIX).partition("_")[0]]
    return _mark_p.bind(operand, target=target, type_=str(type_), dtype=to_jax(out.dtype))


_CALL = re.compile(
    r"(?P<indent> *)(?P<out>%\w+) = stablehlo\.custom_call @(?P<target>uniform_(?:de)?quantize)"
    r"\((?P<operand>%[\w#]+)\) \{backend_config = \"(?P<type>[^\"]*)\"\} :"
    r" \((?P<given>tensor<[^>]*>)\) -> (?P<result>tensor<[^>]*>)(?P<rest>.*)"
)


def with_types(text: str) -> str:
    """A text in which what `marked` left is `stablehlo.uniform_quantize` and `_dequantize`.

    Integers that others make, or use, are converted bit by bit.
    """
    lines = text.splitlines()
    calls = {number: call for number, call in enumerate(map(_CALL.fullmatch, lines)) if call}
    types = {c["out"]: c["type"] for c in calls.values() if c["target"] == "uniform_quantize"}
    direct = {n for n, call in calls.items() if types.get(call["operand"]) == call["type"]}
    others = "\n".join(line for number, line in enumerate(lines) if number not in direct)
    found: list[str] = []
    for number, line in enumerate(lines):
        call = calls.get(number)
        if call is None:
            found.append(line)
        elif call["target"] == "uniform_quantize":
            is_used = len(re.findall(call["out"] + r"(?![\w#])", others)) > 1
            found += _quantize_lines(call, is_used)
        else:
            found += _dequantize_lines(call, number in direct)
    return "\n".join(found) + "\n"


def _quantize_lines(call: "re.Match[str]", is_used: bool) -> list[str]:
    """`is_used`: whether others use the integers."""
    indent, out, given = call["indent"], call["out"], call["given"]
    type_ = _of_type(call["result"], call["type"])
    name = f"%q{out[1:]}"
    line = f"{indent}{name} = stablehlo.uniform_quantize {call['operand']} : ({given}) -> {type_}"
    cast = f"{indent}{out} = stablehlo.bitcast_convert {name} : ({type_}) -> {call['result']}"
    return [line + call["rest"], cast] if is_used else [line + call["rest"]]


def _dequantize_lines(call: "re.Match[str]", is_direct: bool) -> list[str]:
    """`is_direct`: whether its operand was quantized to the same type."""
    indent, out, operand = call["indent"], call["out"], call["operand"]
    type_ = _of_type(call["given"], call["type"])
    name = f"%q{(operand if is_direct else out)[1:]}"
    line = f"{indent}{out} = stablehlo.uniform_dequantize {name} : ({type_}) -> {call['result']}"
    cast = f"{indent}{name} = stablehlo.bitcast_convert {operand} : ({call['given']}) -> {type_}"
    return [line + call["rest"]] if is_direct else [cast, line + call["rest"]]


def _of_type(tensor: str, element: str) -> str:
    """A tensor type with other elements."""
    sizes = tensor.removeprefix("tensor<").rpartition("x")[0]
    return f"tensor<{sizes}x{element}>" if sizes else f"tensor<{element}>"


def check_scale_zp(
    input: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor,
    axis: int,
    dtype: torch.dtype,
) -> None:
    """Raise ArgumentError unless the scales and zero points are those of `axis`, or one of each."""
    if "int" not in str(dtype):
        raise ArgumentError(f"quantize: dtype is {dtype}; an integer dtype is needed")
    about, size = torch.iinfo(dtype), 1 if axis == -1 else input.shape[axis]
    for name, values in (("scale", scale), ("zero_point", zero_point)):
        if values.dim() != 1 or values.numel() not in (1, size):
            raise ArgumentError(
                f"quantize: {name} has shape {list(values.shape)}; along axis {axis} of a tensor"
                f" {list(input.shape)} it must be [{size}] or [1]"
            )
    zeros, scales = zero_point.tolist(), scale.tolist()
    if min(zeros) < about.min or max(zeros) > about.max:
        raise ArgumentError(
            f"quantize: zero_point {zeros} is outside of {dtype}, which holds {about.min} to"
            f" {about.max}"
        )
    if min(scales) <= 0:
        raise ArgumentError(f"quantize: scale {scales} must be above 0")


def unpack_tensor_to_list(t: torch.Tensor) -> list[Any]:
    """The numbers of a tensor."""
    return t.cpu().tolist()  # type: ignore[no-any-return]


def quantize(
    input: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    axis: int = -1,
) -> torch.Tensor:
    """Integers for numbers; with an axis, each place along it has its own scale."""
    return _call("quantize", input, scale, zero_point, quant_min, quant_max, dtype, axis)


def dequantize(
    input: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    axis: int = -1,
) -> torch.Tensor:
    """Numbers for integers; with an axis, each place along it has its own scale."""
    return _call("dequantize", input, scale, zero_point, quant_min, quant_max, dtype, axis)


def _call(
    name: str,
    input: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor,
    low: int,
    high: int,
    dtype: torch.dtype,
    axis: int,
) -> torch.Tensor:
    check_scale_zp(input, scale, zero_point, axis, dtype)
    # torch registers them when this is imported, which is not light.
    importlib.import_module(_OPERATORS)
    operators = torch.ops.quantized_decomposed
    if axis == -1:
        operator = getattr(operators, f"{name}_per_tensor")
        return operator(input, scale.item(), int(zero_point.item()), low, high, dtype)  # type: ignore[no-any-return]
    scale, zero_point = (t.expand(input.shape[axis]) for t in (scale, zero_point))
    operator = getattr(operators, f"{name}_per_channel")
    return operator(  # type: ignore[no-any-return]
        input, scale.to(input.device), zero_point.to(input.device), axis, low, high, dtype
    )
