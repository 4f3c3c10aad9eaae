"""`torch_xla.stablehlo`: torch's exported programs as StableHLO.

The graph of a program is recorded like a decomposition: without values, and beside the user's step.
"""

import os
from collections.abc import Sequence
from typing import Any

import torch
from torch._decomp import get_decompositions
from torch.utils import _pytree as pytree

from torch_xdist.core.devices import device
from torch_xdist.core.record.symbolic_trace import recorded
from torch_xdist.core.trace.tensor_types import dense_type
from torch_xdist.errors import ArgumentError
from torch_xdist.export import modules
from torch_xdist.export.bundle import (
    InputLocation,
    StableHLOFunc,
    StableHLOFunctionMeta,
    StableHLOModelBundle,
    VariableType,
)
from torch_xdist.export.fx_passes import (
    exported_program_has_symbolic_input_shape,
    process_exported_program_with_symbolic_input,
)
from torch_xdist.export.graph import Graph
from torch_xdist.export.graph_module import StableHLOExportOptions, StableHLOGraphModule
from torch_xdist.export.interpreter import XLAExportInterpreter
from torch_xdist.export.lower import Lowered, lower
from torch_xdist.export.parameters import Constants, Inputs, signature

_NAME = "forward"
EXTRA_DECOMPOSITIONS = get_decompositions([torch.ops.aten.grid_sampler_2d])


def exported_program_to_stablehlo(
    exported_model: "torch.export.ExportedProgram", options: StableHLOExportOptions | None = None
) -> StableHLOGraphModule:
    """What `torch.export.export` gave, as StableHLO.

    The result is called like the model. What the model writes into its buffers is not kept.

    Raises NoLoweringError for an operator that cannot be lowered.
    """
    return StableHLOGraphModule(exported_program_to_stablehlo_bundle(exported_model, options))


def save_as_stablehlo(
    exported_model: "torch.export.ExportedProgram",
    stablehlo_dir: str | os.PathLike[str],
    options: StableHLOExportOptions | None = None,
) -> None:
    """`exported_program_to_stablehlo`, written to a folder."""
    options = options or StableHLOExportOptions()
    exported_program_to_stablehlo(exported_model, options).save(stablehlo_dir, options)


def save_torch_model_as_stablehlo(
    torchmodel: torch.nn.Module,
    args: tuple[Any, ...],
    path: str | os.PathLike[str],
    options: StableHLOExportOptions | None = None,
) -> None:
    """A model, exported with these arguments, as StableHLO in a folder."""
    options = options or StableHLOExportOptions()
    options.override_tracing_arguments = args
    save_as_stablehlo(torch.export.export(torchmodel, args), path, options)


def run_decompositions(
    exported_model: "torch.export.ExportedProgram",
) -> "torch.export.ExportedProgram":
    """The program in torch's core operators."""
    table = torch.export.default_decompositions()
    table.update(EXTRA_DECOMPOSITIONS)
    table[torch.ops.aten._safe_softmax.default] = torch.softmax
    return exported_model.run_decompositions(table)


def exported_program_to_stablehlo_bundle(
    exported_model: "torch.export.ExportedProgram", options: StableHLOExportOptions | None
) -> StableHLOModelBundle:
    """What `StableHLOGraphModule` is made of."""
    options = options or StableHLOExportOptions()
    program = run_decompositions(exported_model)
    if exported_program_has_symbolic_input_shape(program):
        process_exported_program_with_symbolic_input(program)
    inputs = Inputs(program, arguments(program, options))
    constants = Constants(inline=options.inline_all_constant)
    lowered, locations = _lowered(program, options, inputs, constants)
    func = StableHLOFunc(
        _meta(program, inputs, locations, lowered),
        lowered.bytecode,
        lowered.text if options.include_human_readable_text else None,
    )
    state = inputs.state() if options.export_weights else {}
    return StableHLOModelBundle(state, constants.kept, [func])


def _lowered(
    program: Any, options: StableHLOExportOptions, inputs: Inputs, constants: Constants
) -> tuple[Lowered, list[InputLocation]]:
    """The program as StableHLO, and where each of its parameters comes from."""
    here = device.device_at(device.default_index())
    interpreter = XLAExportInterpreter(
        program.graph_module,
        here.torch,
        options.custom_ops_allowed_in_graph,
        _serializer(program) if options.export_node_metadata else None,
    )

    def run(*tensors: torch.Tensor) -> list[torch.Tensor]:
        found = interpreter.run(*inputs.filled(tensors), enable_io_processing=False)
        return _own_results(program, found)

    types = [dense_type(tuple(t.shape), t.dtype) for t in inputs.tensors.values()]
    trace, slots, results = recorded(here, types, run)
    roots = [trace.slot_of(result.value) for result in results]  # type: ignore[attr-defined]
    place_of = dict(zip(slots, inputs.tensors))
    graph = Graph(
        trace.tape,
        roots,
        inline_numbers=options.inline_all_constant,
        constants=constants.inlined(trace),
        value_of=lambda slot: inputs.known(place_of.get(slot)),
    )
    symbols = [interpreter.symbols[place_of[s]] if s in place_of else {} for s in graph.leaves]
    locations = [
        inputs.location(place_of[slot]) if slot in place_of else constants.location(trace, slot)
        for slot in graph.leaves
    ]
    locations += [constants.added(number.value) for number in graph.numbers]
    return lower(graph, symbols, here.jax), locations


def _serializer(program: Any) -> Any:
    """What tells about a node as torch's own files do."""
    serialize = torch._export.serde.serialize
    return serialize.GraphModuleSerializer(program.graph_signature, program.module_call_graph)


def flat_arguments(exported_model: Any, options: StableHLOExportOptions) -> list[Any]:
    """The arguments to trace with, flat."""
    return pytree.tree_leaves(arguments(exported_model, options))


def arguments(program: Any, options: StableHLOExportOptions) -> tuple[Any, ...]:
    """The arguments to trace with.

    Raises ArgumentError where there are none, or where some are given by name.
    """
    args, kwargs = options.override_tracing_arguments, options.override_tracing_kwargs
    if args is None:
        if program.example_inputs is None:
            raise ArgumentError(
                "No argument is provided, please make sure that ExportedProgram.example_inputs()"
                " has content, or set override_tracing_arguments"
            )
        args, kwargs = program.example_inputs
    if kwargs:
        raise ArgumentError(
            f"Export to stablehlo doesnt support kwargs yet: the program is called with"
            f" {', '.join(kwargs)} by name; export a module whose forward takes them by place"
        )
    return tuple(args)


def _own_results(program: Any, found: Sequence[Any]) -> list[torch.Tensor]:
    """What the model returns: not the new contents of its buffers.

    Raises ArgumentError for what is no tensor.
    """
    own = list(found)[len(program.graph_signature.buffers_to_mutate) :]
    for place, result in enumerate(own):
        if not isinstance(result, torch.Tensor):
            raise ArgumentError(
                f"StableHLO: result {place} of the model is {result!r}; a function of StableHLO"
                " returns tensors alone"
            )
    return own


def _meta(
    program: Any, inputs: Inputs, locations: list[InputLocation], lowered: Lowered
) -> StableHLOFunctionMeta:
    given, results = modules.signature_of(lowered.module)
    used = {location.position for location in locations if location.type_ is VariableType.INPUT_ARG}
    return StableHLOFunctionMeta(
        name=_NAME,
        stablehlo_version=modules.version(),
        input_signature=[*map(signature, given)],
        output_signature=[*map(signature, results)],
        input_locations=locations,
        unused_inputs=inputs.unused(used),
        input_pytree_spec=pytree.treespec_dumps(program.call_spec.in_spec),
        output_pytree_spec=pytree.treespec_dumps(program.call_spec.out_spec),
    )
