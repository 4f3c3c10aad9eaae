"""Operators: what one overload's schema says, worked out once.

What it mutates, whether it is a view, which of its scalars may be inputs of a program, and which
overload computes the same without writing.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

from torch_xdist.ops.runtime_scalars import RUNTIME

# What a factory takes besides its sizes; its out= form reads them off `out`.
FACTORY_OPTIONS = frozenset({"dtype", "layout", "device", "pin_memory"})


class Op:
    """One overload, as its schema describes it. Made by `op_of`, once for each."""

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
        "shortcut",
    )

    def __init__(self, func: OpOverload) -> None:
        schema = func._schema
        self.func = func
        self.name = str(func)
        # Who answers its calls: a handler of its own; else the fast path of dispatch.py, and where
        # that does not do, `general`.
        self.handler: Callable[..., Any] | None = None
        self.general: Callable[..., Any] | None = None
        # What may have the results of a general call without a row; None where it has not.
        self.shortcut: Callable[..., Any] | None = None
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
        self.find_runtime()

    def find_runtime(self) -> None:
        """Say whether its numbers are inputs of programs: by the table, and by the switch."""
        schema = self.func._schema
        packet = schema.name.removeprefix("aten::")
        names = {packet, packet.rstrip("_"), f"{packet}.{self.func._overloadname}"}
        self.runtime = not (_numbers_are_constants or names.isdisjoint(RUNTIME))
        # Lists of scalars are inputs too, sizes are not.
        self.runtime_lists = self.runtime and all(
            str(a.type) not in ("List[int]", "List[SymInt]") for a in schema.arguments
        )

    def __repr__(self) -> str:
        return self.name


_ops: dict[OpOverload, Op] = {}
_numbers_are_constants = False


def let_numbers_be_constants(value: bool) -> None:
    """Let every Python number be a constant of its program from now on, or those that were.

    Numbers of a whole Adam update and of loops stay inputs.
    """
    global _numbers_are_constants
    _numbers_are_constants = value
    for op in list(_ops.values()):
        op.find_runtime()


def op_of(func: OpOverload | str) -> Op:
    """The one Op of an overload, or of its name, such as "aten.slice.Tensor".

    Plans are found by it: another Op would be another plan, and so another program.
    """
    if isinstance(func, str):
        namespace, packet, overload = func.split(".")
        func = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
    op = _ops.get(func)  # type: ignore[arg-type]
    return op if op is not None else _ops.setdefault(func, Op(func))  # type: ignore[arg-type]


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
