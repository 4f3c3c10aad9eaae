"""StableHLO: export, save, load, run."""

from torch_xdist.export.bundle import (
    InputLocation,
    StableHLOFunc,
    StableHLOFunctionMeta,
    StableHLOJSONSerializer,
    StableHLOModelBundle,
    VariableSignature,
    VariableType,
    stablehlo_obj_hook,
)
from torch_xdist.export.bundle import (
    call_parameters_of_args as _extract_call_parameters,
)
from torch_xdist.export.bundle import (
    entries_of as _iter_dir,
)
from torch_xdist.export.bundle import (
    load_bundle as _load_program_bundle,
)
from torch_xdist.export.bundle import (
    save_bundle as _save_program_bundle,
)
from torch_xdist.export.custom_calls import (
    extract_custom_call_outputs_shape_dtype,
    stablehlo_custom_call,
)
from torch_xdist.export.fx_passes import (
    exported_program_has_symbolic_input_shape,
    process_exported_program_with_symbolic_input,
)
from torch_xdist.export.graph_module import (
    StableHLOExportOptions,
    StableHLOGraphModule,
)
from torch_xdist.export.interpreter import (
    XLAExportInterpreter,
)
from torch_xdist.export.parameters import (
    numpy_dtype as _get_numpy_dtype,
)
from torch_xdist.export.programs import (
    EXTRA_DECOMPOSITIONS as _extra_decompositions,
)
from torch_xdist.export.programs import (
    exported_program_to_stablehlo,
    save_as_stablehlo,
    save_torch_model_as_stablehlo,
)
from torch_xdist.export.programs import (
    exported_program_to_stablehlo_bundle as _exported_program_to_stablehlo_bundle,
)
from torch_xdist.export.programs import (
    flat_arguments as _extract_input_args,
)
from torch_xdist.export.programs import (
    run_decompositions as _run_decompositions,
)

__all__ = [
    "InputLocation",
    "StableHLOExportOptions",
    "StableHLOFunc",
    "StableHLOFunctionMeta",
    "StableHLOGraphModule",
    "StableHLOJSONSerializer",
    "StableHLOModelBundle",
    "VariableSignature",
    "VariableType",
    "XLAExportInterpreter",
    "_exported_program_to_stablehlo_bundle",
    "_extra_decompositions",
    "_extract_call_parameters",
    "_extract_input_args",
    "_get_numpy_dtype",
    "_iter_dir",
    "_load_program_bundle",
    "_run_decompositions",
    "_save_program_bundle",
    "exported_program_has_symbolic_input_shape",
    "exported_program_to_stablehlo",
    "extract_custom_call_outputs_shape_dtype",
    "process_exported_program_with_symbolic_input",
    "save_as_stablehlo",
    "save_torch_model_as_stablehlo",
    "stablehlo_custom_call",
    "stablehlo_obj_hook",
]
