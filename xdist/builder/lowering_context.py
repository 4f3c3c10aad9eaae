"""`LoweringContext`: the pending graph of tensors as an HLO module."""

from collections.abc import Sequence
from typing import Any

import torch

from torch_xdist.builder import proto_text
from torch_xdist.builder.lowered_graph import LoweredGraph, lower_graph
from torch_xdist.core.devices.tensor import XlaTensor, wrap
from torch_xdist.core.devices.transfer import host_value
from torch_xdist.core.record.arguments import on_device
from torch_xdist.core.run.device_trace import trace_of_thread
from torch_xdist.core.trace.tensor_types import dense_type
from torch_xdist.core.trace.values import Value
from torch_xdist.dtypes import to_torch
from torch_xdist.errors import ArgumentError


class LoweringContext:
    """Lowers what tensors wait for, without running it.

    Args:
        name: of the module.
        device: accepted for torch_xla's sake: the tensors say where they are.
    """

    def __init__(self, name: str = "PyLoweringContext", device: Any = None) -> None:
        self._module_name = name
        self._name = name
        self._graph: LoweredGraph | None = None
        self._trace: Any = None

    def build(self, tensors: Sequence[XlaTensor]) -> None:
        """Lower the graph of these tensors, which become the results, in order."""
        values = [on_device(tensor, "LoweringContext.build").value for tensor in tensors]
        devices = {value.trace.device for value in values}
        if len(devices) != 1:
            raise ArgumentError(
                f"LoweringContext.build: {len(tensors)} tensors of {len(devices)} devices; give one"
                " or more tensors of one device"
            )
        trace = self._trace = trace_of_thread(values[0].trace.device)
        roots = [trace.slot_of(value) for value in values]
        self._graph = lower_graph(trace.tape, trace.device, roots, self._module_name)

    def buildforiloop(
        self, tensors: Sequence[XlaTensor], additional_inputs_list: Sequence[XlaTensor] = ()
    ) -> None:
        """`build`; further parameters are not needed by loops here."""
        self.build(tensors)

    def hlo(self) -> bytes:
        """The module as a serialized HloModuleProto."""
        return self._built("hlo").proto

    def hlo_text(self) -> str:
        """The module in protobuf's text form."""
        return proto_text.as_text(self._built("hlo_text").proto)

    def hlo_json(self) -> str:
        """The module in protobuf's JSON form."""
        return proto_text.as_json(self._built("hlo_json").proto)

    def parameter_id_tensor_mapping(self) -> dict[int, torch.Tensor]:
        """A copy on the CPU of what each parameter of the module stands for."""
        return {i: host_value(t) for i, t in self.device_parameter_id_tensor_mapping().items()}

    def device_parameter_id_tensor_mapping(self) -> dict[int, XlaTensor]:
        """What each parameter of the module stands for, on the device."""
        leaves = self._built("device_parameter_id_tensor_mapping").leaves
        return {number: self._holding(buffer) for number, buffer in enumerate(leaves)}

    def _holding(self, buffer: Any) -> XlaTensor:
        value = Value(dense_type(tuple(buffer.shape), to_torch(buffer.dtype)), self._trace)
        value.buffer = buffer
        return wrap(value)

    def tensor_parameter_id(self, tensor: XlaTensor) -> int:
        """The number of the parameter that stands for this tensor; -1 where none does."""
        leaves = self._built("tensor_parameter_id").leaves
        buffer = on_device(tensor, "LoweringContext.tensor_parameter_id").value.buffer
        return next((i for i, leaf in enumerate(leaves) if leaf is buffer), -1)

    def set_name_string(self, name: str) -> None:
        """Give the context a name; the module keeps its own."""
        self._name = name

    def get_name_string(self) -> str:
        """The name of the context."""
        return self._name

    GetNameString = get_name_string

    def _built(self, asked: str) -> LoweredGraph:
        if self._graph is None:
            raise ArgumentError(
                f"LoweringContext.{asked}: nothing was lowered yet; call build(tensors) before"
            )
        return self._graph
