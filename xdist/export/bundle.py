"""A model as StableHLO on disk, as torch_xla lays it out; needs numpy alone.

functions/NAME.meta      what the function takes and gives, JSON
functions/NAME.bytecode  a portable artifact of StableHLO
functions/NAME.mlir      the same as text
data/NAME                weights and buffers, numpy files
constants/0, 1, ...      what the trace made itself, numpy files
"""

import dataclasses
import enum
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from torch_xdist.errors import ArgumentError, CheckpointError

# Types numpy does not know are saved as bytes of this kind.
_BYTES = "V"


class VariableType(enum.Enum):
    """Where a parameter of a function comes from."""

    INPUT_ARG = "input_arg"
    PARAMETER = "parameter"
    CONSTANT = "constant"


@dataclass
class VariableSignature:
    """Shape and dtype of a parameter or a result; dynamic_dims have another size at each call."""

    shape: list[int]
    dtype: str
    dynamic_dims: list[int] = field(default_factory=list)


@dataclass
class InputLocation:
    """Where a parameter comes from: an argument, a constant (by position), a weight (by name)."""

    type_: VariableType
    position: int = -1
    name: str = ""

    @classmethod
    def parameter(cls, name: str) -> "InputLocation":
        """A weight or a buffer."""
        return cls(type_=VariableType.PARAMETER, name=name)

    @classmethod
    def input_arg(cls, position: int) -> "InputLocation":
        """An argument of the call, flattened."""
        return cls(type_=VariableType.INPUT_ARG, position=position)

    @classmethod
    def constant(cls, position: int) -> "InputLocation":
        """What the trace made itself."""
        return cls(type_=VariableType.CONSTANT, position=position)


@dataclass
class StableHLOFunctionMeta:
    """What one function takes and gives, in the order of its StableHLO."""

    name: str
    stablehlo_version: str
    input_signature: list[VariableSignature]
    output_signature: list[VariableSignature]
    input_locations: list[InputLocation]
    # Arguments of the call that the function does not read.
    unused_inputs: list[tuple[InputLocation, VariableSignature]]
    # torch's description of the arguments and results, as JSON.
    input_pytree_spec: str | None = None
    output_pytree_spec: str | None = None


@dataclass
class StableHLOFunc:
    """One function: a portable artifact of StableHLO, and its text for readers."""

    meta: StableHLOFunctionMeta
    bytecode: bytes
    text: str | None


@dataclass
class StableHLOModelBundle:
    """A model: its weights, the constants of its trace, its functions."""

    state_dict: dict[str, Any]
    additional_constants: list[np.ndarray]
    stablehlo_funcs: list[StableHLOFunc]


class StableHLOJSONSerializer(json.JSONEncoder):
    """Writes the classes of this module as JSON."""

    def default(self, obj: Any) -> Any:
        if dataclasses.is_dataclass(obj) and not isinstance(obj, type):
            return dataclasses.asdict(obj)
        return obj.value if isinstance(obj, VariableType) else super().default(obj)


def stablehlo_obj_hook(dct: dict[str, Any]) -> Any:
    """An object of JSON as the class of this module that has its fields."""
    for cls in (StableHLOFunctionMeta, VariableSignature, InputLocation):
        if {entry.name for entry in dataclasses.fields(cls)} == dct.keys():
            if cls is InputLocation:
                dct = {**dct, "type_": VariableType(dct["type_"])}
            return cls(**dct)
    return dct


def function_of(bundle: StableHLOModelBundle, name: str | None = None) -> StableHLOFunc:
    """A function of a bundle by its name (default: the first)."""
    funcs = {func.meta.name: func for func in bundle.stablehlo_funcs}
    found = funcs.get(name or next(iter(funcs)))
    if found is None:
        raise ArgumentError(f"StableHLO: it has no function {name!r}; it has {', '.join(funcs)}")
    return found


def call_parameters(
    arguments: Sequence[Any], meta: StableHLOFunctionMeta, bundle: Any
) -> list[Any]:
    """The parameters of a function: flat arguments, weights and constants in its order.

    Raises ArgumentError for too few arguments, CheckpointError for weights that were not saved.
    """
    of_call = [w for w in meta.input_locations if w.type_ is VariableType.INPUT_ARG]
    last = max((where.position for where in of_call), default=-1)
    if last >= len(arguments):
        raise ArgumentError(
            f"StableHLO {meta.name!r}: called with {len(arguments)} arguments; it reads the one at"
            f" position {last}; give at least {last + 1}"
        )
    found = []
    for location in meta.input_locations:
        if location.type_ is VariableType.INPUT_ARG:
            found.append(arguments[location.position])
        elif location.type_ is VariableType.CONSTANT:
            found.append(bundle.additional_constants[location.position])
        elif location.name in bundle.state_dict:
            found.append(bundle.state_dict[location.name])
        else:
            raise CheckpointError(
                f"StableHLO {meta.name!r} needs the weight {location.name!r}, and the bundle has"
                f" {len(bundle.state_dict)} weights; save it with save_weights and export_weights"
            )
    return found


def call_parameters_of_args(args: Any, meta: StableHLOFunctionMeta, bundle: Any) -> list[Any]:
    """`call_parameters` of a call's arguments; nested ones in the order of torch's pytrees."""
    return call_parameters(list(_leaves(args)), meta, bundle)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = [*value.values()]
    if isinstance(value, list | tuple):
        for part in value:
            yield from _leaves(part)
    else:
        # None is an argument as well.
        yield value


def entries_of(path: str | os.PathLike[str]) -> Iterator[tuple[str, Any]]:
    """The files of a folder: (name, opened for reading bytes)."""
    for entry in Path(path).iterdir():
        with open(entry, "rb") as file:
            yield entry.name, file


def save_bundle(
    bundle: StableHLOModelBundle, stablehlo_dir: str | os.PathLike[str], options: Any = None
) -> None:
    """Write a bundle; without `options.save_weights` there is no folder `data`."""
    root = Path(stablehlo_dir)
    if options is None or options.save_weights:
        _save_arrays(root / "data", bundle.state_dict)
    functions = root / "functions"
    functions.mkdir(parents=True, exist_ok=True)
    for func in bundle.stablehlo_funcs:
        name = func.meta.name
        (functions / f"{name}.meta").write_text(json.dumps(func.meta, cls=StableHLOJSONSerializer))
        (functions / f"{name}.bytecode").write_bytes(func.bytecode)
        if func.text is not None:
            (functions / f"{name}.mlir").write_text(func.text)
    numbered = {str(i): array for i, array in enumerate(bundle.additional_constants)}
    _save_arrays(root / "constants", numbered)


def load_bundle(stablehlo_dir: str | os.PathLike[str]) -> StableHLOModelBundle:
    """Read a bundle, ours or torch_xla's; nothing in it is run or unpickled.

    Raises CheckpointError where there is none.
    """
    root = Path(stablehlo_dir)
    functions = root / "functions"
    metas = sorted(functions.glob("*.meta"))
    if not metas:
        raise CheckpointError(
            f"StableHLO: {functions} has no .meta file; give the folder that save_as_stablehlo"
            " wrote"
        )
    funcs = [_load_function(path) for path in metas]
    dtypes = {
        location.name: signature.dtype
        for func in funcs
        for location, signature in zip(func.meta.input_locations, func.meta.input_signature)
    }
    state = {name: _as_dtype(a, dtypes.get(name)) for name, a in _load_arrays(root / "data")}
    constants = sorted(_load_arrays(root / "constants"), key=lambda item: int(item[0]))
    return StableHLOModelBundle(state, [array for _, array in constants], funcs)


def _load_function(meta: Path) -> StableHLOFunc:
    text = meta.with_suffix(".mlir")
    found = json.loads(meta.read_text(), object_hook=stablehlo_obj_hook)
    if not isinstance(found, StableHLOFunctionMeta) or found.name != meta.stem:
        raise CheckpointError(
            f"StableHLO: {meta} does not describe a function {meta.stem!r}; give a folder that"
            " save_as_stablehlo wrote, with its files as they were"
        )
    return StableHLOFunc(
        found,
        meta.with_suffix(".bytecode").read_bytes(),
        text.read_text() if text.exists() else None,
    )


def _save_arrays(folder: Path, arrays: Mapping[str, np.ndarray]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in arrays.items():
        with open(folder / name, "wb") as file:
            np.save(file, array)


def _load_arrays(folder: Path) -> Iterator[tuple[str, np.ndarray]]:
    if folder.is_dir():
        for name, file in entries_of(folder):
            # Never pickled objects: a bundle may come from anywhere.
            yield name, np.load(file, allow_pickle=False)


def _as_dtype(array: np.ndarray, dtype: str | None) -> np.ndarray:
    """An array whose type numpy does not know, such as bfloat16, as that type."""
    if dtype is None or array.dtype.kind != _BYTES:
        return array
    return array.view(np.dtype(dtype))
