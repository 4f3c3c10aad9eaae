"""Operators and plans: everything about a row that is worked out once.

An `Op` is what one overload's schema says (what it mutates, whether it is a view, which scalars
may be runtime inputs). A `Plan` is an overload with its static arguments and operand kinds: its
result kinds come from torch's own meta kernels, so errors are raised at the user's line in
torch's words. Plans are interned; a row of a trace starts with one.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from torch_xdist.core.trace import Kind, dense_kind, kind_of_meta
from torch_xdist.ops.runtime_scalars import RUNTIME

# What a factory takes besides its sizes; its out= form reads them off `out`.
FACTORY_OPTIONS = frozenset({"dtype", "layout", "device", "pin_memory"})
# How the results of a plan are handed back.
SINGLE, TUPLE, LIST, NOTHING = range(4)


class Slot:
    """Stands in a plan's template where tensor operand `index` goes."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index

    # Part of a program's fingerprint, which ranks compare: no address may be in it.
    def __repr__(self) -> str:
        return f"%{self.index}"


class Number:
    """Stands in a plan's template where the next runtime scalar of this type goes."""

    __slots__ = ("type",)

    def __init__(self, type_: type) -> None:
        self.type = type_

    def __repr__(self) -> str:
        return f"<{self.type.__name__}>"


class Op:
    """One overload, as its schema describes it."""

    __slots__ = (
        "func",
        "functional",
        "general",
        "handler",
        "in_place",
        "is_factory",
        "is_pointwise",
        "is_view",
        "mutated",
        "name",
        "out_names",
        "returns_mutated",
        "runtime",
        "runtime_lists",
    )

    def __init__(self, func: OpOverload) -> None:
        schema = func._schema
        self.func = func
        self.name = str(func)
        # Who answers its calls: a handler of its own; else the quick path of dispatch.py, and where
        # that does not do, `general`.
        self.handler: Callable[..., Any] | None = None
        self.general: Callable[..., Any] | None = None
        written = [
            (i, a) for i, a in enumerate(schema.arguments) if a.alias_info and a.alias_info.is_write
        ]
        self.out_names = tuple(a.name for _, a in written if a.is_out)
        self.mutated = tuple((i, a.name) for i, a in written)
        self.is_view = not written and any(r.alias_info for r in schema.returns)
        self.returns_mutated = bool(written) and bool(schema.returns)
        # It writes its first argument, nothing else, and returns it.
        self.in_place = (
            not self.out_names and [i for i, _ in self.mutated] == [0] and len(schema.returns) == 1
        )
        self.functional = functional_form(func) if written else func
        # Some out= forms lack the tag of the form they write.
        self.is_pointwise = torch.Tag.pointwise in (self.functional or func).tags
        self.is_factory = (
            bool(self.out_names)
            and self.functional is not None
            and any(a.name == "dtype" for a in self.functional._schema.arguments)
            and not any(a.name == "dtype" for a in schema.arguments)
        )
        packet = func._schema.name.removeprefix("aten::")
        self.runtime = packet in RUNTIME or packet.rstrip("_") in RUNTIME
        # Lists of scalars are inputs too, sizes are not.
        self.runtime_lists = self.runtime and all(
            str(a.type) not in ("List[int]", "List[SymInt]") for a in schema.arguments
        )


class Plan:
    """A row's static part. Compared by identity; `label` says it in words."""

    __slots__ = (
        "args",
        "is_collective",
        "is_plain",
        "is_random",
        "kinds",
        "kwargs",
        "lowering",
        "name",
        "op",
        "operand_kinds",
        "recipe",
        "structure",
    )

    def __init__(
        self,
        name: str,
        op: Op | None,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        operand_kinds: Sequence[Kind],
        kinds: Sequence[Kind | None],
        structure: int,
    ) -> None:
        self.name = name
        self.op = op
        self.args = tuple(args)
        self.kwargs = kwargs
        self.operand_kinds = tuple(operand_kinds)
        self.kinds = tuple(kinds)
        self.structure = structure
        self.is_random = False
        self.is_collective = False
        # The quick path of dispatch.py may record it.
        self.is_plain = True
        # A function of JAX arrays given instead of a row of the lowering table.
        self.lowering: Callable[..., Any] | None = None
        # How to compute it; made when a program first needs it.
        self.recipe: Any = None

    def __repr__(self) -> str:
        operands = ", ".join(map(repr, self.operand_kinds))
        return f"{self.name}({operands}) -> {list(self.kinds)}"


def number_types(plan: Plan) -> list[type]:
    """The types of a plan's runtime scalars, in the order of its arguments."""
    marks = flat((plan.args, tuple(plan.kwargs.values())))
    return [mark.type for mark in marks if isinstance(mark, Number)]


def flat(value: Any) -> Iterator[Any]:
    """What stands inside nested tuples and lists, in order."""
    if isinstance(value, tuple | list):
        for part in value:
            yield from flat(part)
    else:
        yield value


def functional_form(func: OpOverload) -> OpOverload | None:
    """The overload that computes what `func` writes, without writing; None if torch has none.

    torch derives mutable forms from functional ones: `add_.Tensor` from `add.Tensor`, and out=
    forms have the same arguments less the out ones.
    """
    schema = func._schema
    packet_name = schema.name.removeprefix("aten::")
    bare = packet_name.removesuffix("_")
    names = [bare, packet_name, bare + "_functional"]
    wanted = [(a.name, str(a.type)) for a in schema.arguments if not a.is_out]
    for name in names:
        packet = getattr(torch.ops.aten, name, None)
        if packet is None:
            continue
        for overload in packet.overloads():
            candidate = getattr(packet, overload)
            if candidate is func or _mutates(candidate):
                continue
            found = [(a.name, str(a.type)) for a in candidate._schema.arguments]
            # Factories have options besides; reductions name a dtype in both forms.
            if wanted in (found, [a for a in found if a[0] not in FACTORY_OPTIONS]):
                return candidate
    return None


def _mutates(func: OpOverload) -> bool:
    return any(a.alias_info and a.alias_info.is_write for a in func._schema.arguments)


def result_kinds(result: Any) -> tuple[list[Kind | None], int]:
    """The kinds of what a meta kernel returned, and the structure they are handed back in."""
    if isinstance(result, torch.Tensor):
        return [kind_of_result(result)], SINGLE
    if isinstance(result, tuple | list):
        flat: list[Kind | None] = []
        for entry in result:
            for part in entry if isinstance(entry, tuple | list) else [entry]:
                flat.append(None if part is None else kind_of_result(part))
        return flat, LIST if isinstance(result, list) else TUPLE
    return [], NOTHING


def kind_of_result(meta: torch.Tensor) -> Kind:
    """The kind of a fresh result: dense, at offset 0 of its own storage."""
    if meta.storage_offset():
        return dense_kind(tuple(meta.shape), meta.dtype)
    return kind_of_meta(meta)
