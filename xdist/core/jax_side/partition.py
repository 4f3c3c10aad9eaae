"""Splits of a function and its gradients by torch's partitioners (`functorch.compile`).

A partitioner gets the rows as an FX graph and decides what is saved and what is computed again; the
rows themselves stay what was recorded.
"""

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from torch_xdist.core.jax_side.joint import Joint, Split, scalars_by_row, split, split_at
from torch_xdist.core.trace.plans import fill
from torch_xdist.core.trace.tensor_types import TensorType
from torch_xdist.core.trace.trace import rows_of
from torch_xdist.errors import ArgumentError

# (joint module, its inputs, num_fwd_outputs=...) -> (forward module, backward module)
Partition = Callable[..., tuple[torch.fx.GraphModule, torch.fx.GraphModule]]


def split_by(partition_fn: Partition | None, joint: Joint) -> Split:
    """The split a partitioner chooses; None and torch's default save all that is needed again.

    Raises ArgumentError where the partitioner adds operators of its own.
    """
    name = getattr(partition_fn, "__name__", "")
    if partition_fn is None or name == "default_partition":
        return split(joint)
    module, examples = _as_graph(joint)
    forward, backward = partition_fn(module, examples, num_fwd_outputs=len(joint.types))
    inputs = [_slot_of(node) for node in backward.graph.nodes if node.op == "placeholder"]
    saved = [slot for slot in inputs if slot not in joint.tangents]
    return split_at(joint, _rows(forward, name), _rows(backward, name), saved)


def _slot_of(node: torch.fx.Node) -> int:
    return node.meta["slot"]  # type: ignore[no-any-return]


def _rows(module: torch.fx.GraphModule, name: str) -> set[int]:
    """The first slots of the rows that a module has."""
    calls = [n for n in module.graph.nodes if n.op not in ("placeholder", "output")]
    added = [str(node.target) for node in calls if "slot" not in node.meta]
    if added:
        raise ArgumentError(
            f"scan: partition_fn {name} adds {', '.join(added)} to the graph; it may only choose"
            " which of the graph's own operators the backward pass computes again"
        )
    return {node.meta["row"] for node in calls if "row" in node.meta}


def _as_graph(joint: Joint) -> tuple[torch.fx.GraphModule, list[Any]]:
    """The rows as an FX graph, and examples of its operands."""
    whole, graph, mode = joint.subgraph, torch.fx.Graph(), FakeTensorMode()
    nodes: dict[int, torch.fx.Node] = {}
    slots = [("primals", s) for s in joint.primals] + [("tangents", s) for s in joint.tangents]
    types = _operand_types(joint)
    for place, ((kind, slot), type_) in enumerate(zip(slots, types), 1):
        nodes[slot] = _noted(graph.placeholder(f"{kind}_{place}"), slot, _example(mode, type_))
    examples = [nodes[slot].meta["val"] for _, slot in slots]
    scalars = scalars_by_row(whole)
    for start, (plan, *operands) in rows_of(whole.entries):
        given, of_row = iter(scalars[start]), [nodes[slot] for slot in operands]
        args = tuple(fill(mark, of_row, given) for mark in plan.args)
        kwargs = {name: fill(mark, of_row, given) for name, mark in plan.kwargs.items()}
        values = [None if type_ is None else _example(mode, type_) for type_ in plan.types]
        target = plan.op.func if plan.op is not None else _Row(plan.name)
        node = graph.call_function(target, args, kwargs)
        node.meta["row"] = start
        if len(values) == 1:
            nodes[start] = _noted(node, start, values[0])
            continue
        _noted(node, start, tuple(values))
        for place, value in enumerate(values):
            part = graph.call_function(operator.getitem, (node, place))
            nodes[start + place] = _noted(part, start + place, value)
    graph.output(tuple(nodes[slot] for slot in whole.outs if slot is not None))
    return torch.fx.GraphModule(torch.nn.Module(), graph), examples


def _operand_types(joint: Joint) -> list[TensorType]:
    """The types of a joint function's operands; of a gradient that nothing reads, its result's."""
    entries = joint.subgraph.entries
    of_results = [t for t, given in zip(joint.types, joint.given) if given]
    return [*(entries[slot][0] for slot in joint.primals), *of_results]  # type: ignore[index]


def _noted(node: torch.fx.Node, slot: int, value: Any) -> torch.fx.Node:
    node.meta.update(slot=slot, val=value)
    return node


def _example(mode: FakeTensorMode, type_: TensorType) -> torch.Tensor:
    with mode:
        return torch.empty(type_.shape, dtype=type_.dtype, device="cpu")


class _Row:
    """Stands in a graph for a row that is no operator of torch's."""

    def __init__(self, name: str) -> None:
        self.__name__ = self.__qualname__ = name.replace(".", "_")
        self.__module__ = __name__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{self.__name__}: a row of a graph that is only looked at")
