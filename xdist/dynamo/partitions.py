"""Captured graphs in which something runs on the CPU: the parts around it are programs."""

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupport
from torch.fx.passes.utils.fuser_utils import topo_sort

from torch_xdist import metrics
from torch_xdist.core.devices import device
from torch_xdist.core.record import cpu_only
from torch_xdist.core.record.arguments import INDEXING
from torch_xdist.dynamo.captured import CapturedModule

_COPY = torch.ops.aten._to_copy.default


def get_fallback_ops() -> list[str]:
    """The operators that ran on the CPU because they have no lowering, as aten::NAME."""
    return metrics.executed_fallback_ops()


def is_xla_tensor(tensor: torch.Tensor) -> bool:
    """Whether a tensor is on the device."""
    return tensor.device.type == "xla"


def _fallbacks() -> int:
    return sum(metrics.counter_value(name) or 0 for name in get_fallback_ops())


class UnsupportedNodesCollector(torch.fx.Interpreter):
    """Runs a graph node by node, and notes those that cannot be part of a program.

    A node is one where an operator runs on the CPU, or an argument or result is a tensor of it.
    """

    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__(module)
        self._unsupported: list[torch.fx.Node] = []

    def run_node(self, n: torch.fx.Node) -> Any:
        """The node's result."""
        before = _fallbacks()
        result = super().run_node(n)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        if isinstance(n.target, OpOverload) and cpu_only.is_wanted(n.target, args):
            # It may run on the device, but its shape is one of these values.
            self._unsupported.append(n)
        elif _fallbacks() > before or not _all_on_device((result, args, kwargs)):
            self._unsupported.append(n)
        return result

    def get_unsupported_nodes(self) -> list[torch.fx.Node]:
        """The nodes that were noted."""
        return self._unsupported


def _all_on_device(value: Any) -> bool:
    leaves = torch.utils._pytree.tree_leaves(value)
    return all(is_xla_tensor(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor))


class InputCollector(torch.fx.Interpreter):
    """Runs a partitioned graph; each part has its arguments as `xla_args` afterwards."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__(module)

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        """The result of a part."""
        if "fused_" in target:
            self.fetch_attr(target).xla_args = args
        return super().call_module(target, args, kwargs)


class XLAConstructorMoverPass:
    """Makes tensors on the device that a graph makes on the CPU only to use them there."""

    def __init__(self) -> None:
        self.target = "xla"

    def allow_cpu_device(self, node: torch.fx.Node) -> bool:
        """Whether a node takes tensors of the CPU and may give one of the device."""
        if str(node.target) in INDEXING:
            return True
        place = node.kwargs.get("device")
        return node.target is _COPY and isinstance(place, torch.device) and device.is_ours(place)

    def __call__(self, graph: torch.fx.Graph) -> None:
        """Change the graph."""
        for node in graph.nodes:
            place = node.kwargs.get("device")
            is_made = not node.all_input_nodes and isinstance(place, torch.device)
            if not is_made or place.type != "cpu" or not node.users:
                continue
            targets = [self._goes_to(user) for user in node.users]
            if None not in targets:
                node.kwargs = {**node.kwargs, "device": targets[0]}

    def _goes_to(self, node: torch.fx.Node) -> torch.device | None:
        """The device that a node gives a tensor of, though it takes one of the CPU; or None."""
        if not self.allow_cpu_device(node):
            return None
        place: Any = node.kwargs.get("device")
        if node.target is not _COPY:
            place = getattr(node.meta.get("val"), "device", None)
        if place is None or not device.is_ours(place):
            return None
        return torch.device(self.target, device.index_of(place))


def unsupported_nodes(module: torch.fx.GraphModule, args: Sequence[Any]) -> list[torch.fx.Node]:
    """The nodes of a graph that cannot be part of a program with these arguments."""
    collector = UnsupportedNodesCollector(module)
    collector.run(*args)
    found = collector.get_unsupported_nodes()
    return [node for node in found if node.op not in ("placeholder", "output", "get_attr")]


class _Supported(OperatorSupport):
    def __init__(self, unsupported: Sequence[torch.fx.Node]) -> None:
        super().__init__()
        self._unsupported = set(unsupported)

    def is_node_supported(self, submodules: Any, node: torch.fx.Node) -> bool:
        if node.op not in ("call_function", "call_module", "call_method"):
            return False
        return node not in self._unsupported or node.target is operator.getitem


class _Part(torch.nn.Module):
    """A part of a graph that is a program by itself."""

    def __init__(self, part: torch.nn.Module) -> None:
        super().__init__()
        self._captured = CapturedModule(part)

    def forward(self, *args: Any) -> Any:
        return self._captured(*args)


def partitioned(
    module: torch.fx.GraphModule, unsupported: Sequence[torch.fx.Node]
) -> torch.fx.GraphModule:
    """The graph with each largest part that a program can run as one call of it."""
    partitioner = CapabilityBasedPartitioner(
        module, _Supported(unsupported), allows_single_node_partition=True
    )
    partitions = partitioner.propose_partitions()
    for partition in partitions:
        # They come in no particular order.
        partition.nodes = dict.fromkeys(topo_sort(list(partition.nodes)))
    fused = partitioner.fuse_partitions(partitions)
    for name, part in list(fused.named_children()):
        if name.startswith("fused_"):
            setattr(fused, name, _Part(part))
    return fused
