"""What torch's backend `openxla` calls: a captured graph as a function of the device.

Dynamo's guards take the place of the Python between the operators: a call of a graph whose shapes
were seen runs one compiled program, and records nothing.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_xdist import metrics, settings
from torch_xdist.core.devices import device
from torch_xdist.core.devices.tensor import XlaTensor
from torch_xdist.dynamo.captured import Capture, CapturedModule
from torch_xdist.dynamo.inputs import own_trace, stand_ins
from torch_xdist.dynamo.partitions import (
    XLAConstructorMoverPass,
    partitioned,
    unsupported_nodes,
)

dynamo_debug = settings.current().dynamo_debug
ptxla_debug = settings.current().debug


def extract_compiled_graph(
    xla_model: torch.fx.GraphModule, xla_args: Sequence[Any]
) -> Callable[..., Any]:
    """A function that runs a captured graph as one program of the device.

    Operators that only the CPU can run, and tensors of the CPU, part it: then what is between is
    a program each.

    Args:
        xla_model: the graph, of aten operators; its own parameters may be on the device too.
        xla_args: example arguments, as in a call. What is pending of them runs first, by itself.
    """
    metrics.count("DynamoExtractCompiledGraph")
    return extract_compiled_graph_helper(xla_model, xla_args)


def extract_compiled_graph_helper(
    xla_model: torch.fx.GraphModule, xla_args: Sequence[Any]
) -> Callable[..., Any]:
    """`extract_compiled_graph`, which counts its calls."""
    XLAConstructorMoverPass()(xla_model.graph)
    xla_model.recompile()
    tensors = [arg for arg in xla_args if isinstance(arg, torch.Tensor)]
    for tensor in tensors:
        # Nested tensors tell their longest sequence by the shape of one without elements.
        if tensor.device.type != "xla" and tensor.numel():
            warnings.warn(
                f"Found tensor with shape {tensor.size()} on {tensor.device}. Please move all"
                " tensors to xla device to execute on XLA device.",
                stacklevel=2,
            )
    has_numbers = len(tensors) < len(xla_args)
    if not has_numbers:
        return partition_fx_graph_for_cpu_fallback(xla_model, xla_args, xla_args, tensors)
    # A partition would give the numbers to a graph of its own.
    unsupported = _unsupported(xla_model, xla_args)
    return _told(CapturedModule(xla_model), xla_args) if not unsupported else xla_model.forward


def partition_fx_graph_for_cpu_fallback(
    xla_model: torch.fx.GraphModule,
    xla_args: Sequence[Any],
    all_xla_args: Sequence[Any],
    all_xla_args_tensor_only: Sequence[torch.Tensor],
) -> Callable[..., Any]:
    """The graph as programs, with what only the CPU can run between them.

    Args:
        xla_args: example arguments.
        all_xla_args, all_xla_args_tensor_only: taken for torch_xla's sake; what a graph writes is
            found without them.
    """
    unsupported = _unsupported(xla_model, xla_args)
    if not unsupported:
        return _told(CapturedModule(xla_model), xla_args)
    if ptxla_debug or dynamo_debug:
        print(
            f"Dynamo fallback ops are{unsupported}. Please open a GitHub issue with the above op"
            " lowering requests."
        )
    return partitioned(xla_model, unsupported)


def _unsupported(xla_model: torch.fx.GraphModule, xla_args: Sequence[Any]) -> list[torch.fx.Node]:
    held = [*xla_args, *xla_model.parameters(), *xla_model.buffers()]
    inputs = [tensor for tensor in held if tensor.__class__ is XlaTensor]
    here = inputs[0].value.trace.device if inputs else device.device_at(device.index_of(None))
    with stand_ins(inputs), own_trace(here), torch.no_grad():
        return unsupported_nodes(xla_model, xla_args)


def _told(module: CapturedModule, args: Sequence[Any]) -> CapturedModule:
    """The module, compiled for these arguments; XLA_DYNAMO_DEBUG prints what that gave."""
    capture = module.capture(*args)
    if dynamo_debug:
        graph = capture.graph
        print(
            f"Number of HLO Input: {len(graph.leaves)}\nNumber of HLO Output: {len(graph.outs)}\n"
            f"Number of HLO Input can be aliased with Output: {sum(graph.donated)}\n"
            f"Graph Hash: {graph.hash}"
        )
    return module


def extract_internal(xla_model: torch.fx.GraphModule) -> Callable[..., Any]:
    """A function that runs a graph as one program; its example arguments are `xla_args` of it."""
    return _told(CapturedModule(xla_model), xla_model.xla_args)  # type: ignore[arg-type]


def extract_graph_helper(
    xla_model: torch.fx.GraphModule,
    sym_constants_to_graph_vars: dict[tuple[int | float, ...], Any],
) -> Capture:
    """The recording of a graph for its `xla_args`, entered under the numbers among them."""
    args: Any = xla_model.xla_args
    numbers = tuple(arg for arg in args if not isinstance(arg, torch.Tensor))
    capture = sym_constants_to_graph_vars[numbers] = CapturedModule(xla_model).capture(*args)
    return capture
