"""Walking the graph of an exported program on tensors of a symbolic trace."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_xdist.core.devices.tensor import XlaTensor
from torch_xdist.errors import CutError, NoLoweringError
from torch_xdist.export.custom_calls import (
    extract_custom_call_outputs_shape_dtype,
    stablehlo_custom_call,
)
from torch_xdist.export.debug_info import write_mlir_debuginfo
from torch_xdist.export.dynamic import symbols_of


class XLAExportInterpreter(torch.fx.Interpreter):
    """Records what a graph does, on the device.

    Args:
        device: where tensors are made that the graph makes itself.
        custom_ops_allowed_in_graph: namespaces whose operators become custom calls.
        gm_serializer: what tells about a node, for its location; None where nothing shall.

    Attributes:
        symbols: the names of the open sizes of each placeholder, by dim.
    """

    def __init__(
        self,
        module: torch.fx.GraphModule,
        device: torch.device,
        custom_ops_allowed_in_graph: set[str],
        gm_serializer: Any,
    ) -> None:
        super().__init__(module)
        self._device = device
        self.custom_ops_allowed_in_graph = custom_ops_allowed_in_graph
        self.gm_serializer = gm_serializer
        self.symbols: list[dict[int, str]] = []

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call an operator; what it makes is made on the device."""
        named: Mapping[str, Any] = kwargs
        if "device" in kwargs:
            named = {**kwargs, "device": self._device}
        if hasattr(target, "_schema"):
            args = tuple(_as_tensors(target, args))
        return super().call_function(target, args, dict(named))

    def run_node(self, n: torch.fx.Node) -> Any:
        """Run one node. Raises NoLoweringError for one that needs values."""
        try:
            result = self._run(n)
        except CutError as error:
            raise NoLoweringError(
                f"This model contains ops not capturable by Pytorch/XLA: {n.target} (node"
                f" {n.name}) has no lowering, or needs the values of its operands; take it out of"
                " the model, or give it a lowering"
            ) from error
        if self.gm_serializer is None or n.op == "placeholder":
            return result
        about = json.dumps(_metadata(self.gm_serializer, n))
        return pytree.tree_map_only(XlaTensor, lambda x: write_mlir_debuginfo(x, about), result)

    def _run(self, n: torch.fx.Node) -> Any:
        if n.op == "placeholder":
            value = n.meta.get("val")
            self.symbols.append(symbols_of(value) if isinstance(value, torch.Tensor) else {})
        is_custom = getattr(n.target, "namespace", None) in self.custom_ops_allowed_in_graph
        if n.op != "call_function" or not is_custom:
            return super().run_node(n)
        args, _ = self.fetch_args_kwargs_from_env(n)
        tensors = [leaf for leaf in pytree.tree_leaves(args) if isinstance(leaf, torch.Tensor)]
        shapes, dtypes = extract_custom_call_outputs_shape_dtype(n)
        return stablehlo_custom_call(tensors, str(n.target), shapes, dtypes)


def _metadata(serializer: Any, n: torch.fx.Node) -> dict[str, str]:
    """What torch's files say of a node. Which function it comes from has two names there."""
    found = dict(serializer.serialize_metadata(n))
    if "torch_fn" in n.meta:
        found.setdefault("source_fn_stack", ",".join(n.meta["torch_fn"]))
    return found


def _as_tensors(target: Any, args: Sequence[Any]) -> list[Any]:
    """The arguments, with a number as a tensor of torch's default dtype where one is asked for.

    torch would make float64 of it, which counts beside a tensor without dims.
    """
    wanted = [str(argument.type) == "Tensor" for argument in target._schema.arguments]
    return [
        torch.tensor(value) if is_tensor and isinstance(value, float) else value
        for value, is_tensor in zip(args, wanted)
    ]
