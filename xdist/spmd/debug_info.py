"""What stands behind a device tensor, in torch_xla's words."""

import torch

from torch_xdist.core.devices.tensor import XlaTensor
from torch_xdist.core.run.graph_text import row_text, shape_text
from torch_xdist.core.sharding.arrays import HostArray, Parts
from torch_xdist.core.trace.values import Value, hardware_name
from torch_xdist.spmd import marks
from torch_xdist.spmd.marks import unwrapped


def get_xla_tensor_debug_info(tensor: torch.Tensor) -> str:
    """Its type, its sharding, the row that will make it, and where its values are.

    A tensor of the host that a pending program reads is put on the devices first.
    """
    found = unwrapped(tensor)
    if found.__class__ is not XlaTensor:
        return "Not a XLATensor\n"
    value = found.value
    tape = marks.trace_of(value).tape
    is_operand = value.buffer is not None and value.epoch == tape.epoch
    layout = value.trace.device.layout
    if isinstance(value.buffer, HostArray) and is_operand:
        layout.placed(value.buffer)
    on_host = isinstance(value.buffer, HostArray) and value.buffer.placed is None
    tiling = marks.tiling_of(found)
    name = hardware_name(value.trace.device.jax) if layout is None else "SPMD:0"
    lines = [
        "XLATensor {",
        f"TensorID: {id(found)}",
        f"AliasID: {id(value)}",
        f"Device: {name}",
        f"XLA Shape: {shape_text(value.type)}",
        f"ShardingSpec: {'None' if tiling is None else tiling.text}",
        f"IR: {_row(value, on_host, is_operand or tiling is not None)}",
        *_data(value, name, on_host),
        f"Tensor on host: {f'with size {list(found.shape)}' if on_host else 'None'}",
        "}",
        "",
    ]
    return "\n".join(lines)


def _row(value: Value, on_host: bool, is_data: bool) -> str:
    """The row that makes a value; of a buffer that pending rows read, or that is cut, that it is
    one."""
    if on_host or (value.buffer is not None and not is_data):
        return "None"
    if value.buffer is not None:
        return f"{shape_text(value.type)} xla::device_data"
    tape = marks.trace_of(value).tape
    return row_text(tape, value.trace.device, marks.trace_of(value).slot_of(value))


def _data(value: Value, name: str, on_host: bool) -> list[str]:
    """The lines about a value's buffer."""
    buffer = value.buffer.placed if isinstance(value.buffer, HostArray) else value.buffer
    if on_host or buffer is None:
        return ["XLAData: None"]
    shape = f"  Data Shape: {shape_text(value.type)}"
    layout = value.trace.device.layout
    if layout is None or not (isinstance(buffer, Parts) or layout.is_here(buffer)):
        handle = "Deleted" if buffer.is_deleted() else str(id(buffer))
        return ["XLAData: ", f"  Data Device: {name}", shape, f"  Data Handle: {handle}"]
    tiling = marks.tiling_of_value(value)
    return [
        "XLAShardedData: ",
        f"  Data Device: {name}",
        shape,
        f"  OpSharding: {'{replicated}' if tiling is None else tiling.text}",
        f"  NumShards: {layout.count}",
    ]
