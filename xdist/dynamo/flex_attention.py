"""torch's `flex_attention` and `create_block_mask` for device tensors: recorded as they compute.

torch gives attention whose scores a function changes to a kernel that its compiler makes, for the
devices that it knows, and refuses others. Here the trace is compiled anyway: the user's functions
over all positions are recorded like other operators, with gradients. What is checked and what is
returned stay torch's: its functions run with other globals. Compiled by dynamo, they end the graph
and are recorded the same way.

torch's module takes long to import, so it is completed when a script imports it.
"""

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from torch_xdist.releases import late_imports, patch_table, patches, probes

_NAME = "torch.nn.attention.flex_attention"


class _Way(NamedTuple):
    """A function of torch's module that becomes two, under names of their own beside it."""

    name: str
    of_xla: str
    elsewhere: str
    is_ours: str  # what tells that a call is ours
    instead: Mapping[str, str]  # what it is given instead of what the caller gave


_WAYS = (
    _Way(
        "flex_attention",
        "_flex_attention_of_xla",
        "_flex_attention_elsewhere",
        "query.device.type == 'xla'",
        {},
    ),
    _Way(
        "create_block_mask",
        "_create_block_mask_of_xla",
        "_create_block_mask_elsewhere",
        "device is not None and torch.device(device).type == 'xla'",
        {"_compile": "False"},
    ),
)


def register() -> None:
    """Complete torch's module, now or when it is imported."""
    late_imports.when_imported(_NAME, _complete)


def _complete(module: ModuleType) -> None:
    # What may be missing; the module itself stands below its package only after its import.
    asked = [found for found in probes.findings({patch_table.FLEX}) if found.probe.otherwise]
    usual = [inspect.unwrap(getattr(module, way.name)) for way in _WAYS]
    # Other code fits into a function only where both take nothing from a function around them.
    if not all(found.is_there for found in asked) or any(f.__closure__ for f in usual):
        return
    others = {
        "_validate_device": _accept,
        # torch calls no compiler then.
        "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG": True,
        "flex_attention_hop": functools.partial(attend, module),
    }
    for way, function in zip(_WAYS, usual, strict=True):
        recorded = torch.compiler.disable(_copy(function, {**vars(module), **others}))
        patches.replace(f"{_NAME}.{way.of_xla}", recorded)
        patches.replace(f"{_NAME}.{way.elsewhere}", _copy(function, vars(module)))
        # Its code, not the function: who imported it before has it too, and dynamo looks into it.
        patches.replace(f"{_NAME}.{way.name}.__code__", _parting(function.__code__, way))


def _accept(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
    """Instead of torch's list of devices."""


def _copy(function: Any, names: Mapping[str, Any]) -> FunctionType:
    """A function with the same code and other globals."""
    made = FunctionType(function.__code__, dict(names), function.__name__, function.__defaults__)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def _parting(code: CodeType, way: _Way) -> CodeType:
    """Code with the same parameters that calls one or the other function."""
    count = code.co_argcount
    placed, named = code.co_varnames[:count], code.co_varnames[count:][: code.co_kwonlyargcount]
    parameters = ", ".join([*placed, *["*"] * bool(named), *named])

    def call(which: str, instead: Mapping[str, str]) -> str:
        return f"{which}({', '.join(f'{x}={instead.get(x, x)}' for x in (*placed, *named))})"

    ours, others = call(way.of_xla, way.instead), call(way.elsewhere, {})
    found: dict[str, Any] = {}
    exec(f"def f({parameters}): return {ours} if {way.is_ours} else {others}", found)
    made: CodeType = found["f"].__code__
    return made.replace(
        co_name=code.co_name, co_filename=code.co_filename, co_firstlineno=code.co_firstlineno
    )


def attend(
    torchs: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Callable[..., torch.Tensor],
    block_mask: tuple[Any, ...],
    scale: float,
    *_: Any,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What torch's operator computes, of which this has the first arguments.

    Args:
        torchs: its module.
        query: [b, heads, m, d]; key, value: [b or 1, heads / any, n, d].
        block_mask: a BlockMask's parts; the last is its function of positions.

    Returns [b, heads, m, d], and of the scores the log-sum-exp and the largest, both of base 2.
    Where a query sees no key they are 0 and -inf.
    """
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

    if torch.is_autocast_enabled("xla"):
        narrow = torch.get_autocast_dtype("xla")
        q, k, v = (x if x.dtype == torch.float64 else x.to(narrow) for x in (query, key, value))
        # Within it is as precise as without.
        with torch.autocast("xla", enabled=False):
            return attend(torchs, q, k, v, score_mod, block_mask, scale)
    shared = query.size(1) // key.size(1)
    key, value = (x.expand(query.size(0), -1, -1, -1) for x in (key, value))
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    whole = key.repeat_interleave(shared, 1).to(wide)
    scores = query.to(wide) @ whole.transpose(-2, -1) * scale
    places = [torch.arange(size, device=query.device) for size in scores.shape]
    is_changed, mask = score_mod is not torchs._identity, None
    with TransformGetItemToIndex():
        if is_changed:
            scores = torchs._vmap_for_bhqkv(score_mod, prefix=(0,))(scores, *places)
        if block_mask[-1] is not torchs.noop_mask:
            mask = torchs._vmap_for_bhqkv(block_mask[-1], prefix=())(*places)
            scores = torch.where(mask, scores, -math.inf)
    if is_changed:
        weights = torch._safe_softmax(scores, -1).to(query.dtype)
        out = weights @ value.repeat_interleave(shared, 1)
    else:
        out = functional.scaled_dot_product_attention(
            query, key, value, mask, scale=scale, enable_gqa=shared > 1
        )
    # Rows that nobody reads are not computed.
    seen = torch.logsumexp(scores, -1)
    return out, seen / math.log(2), scores.amax(-1) / math.log(2)
