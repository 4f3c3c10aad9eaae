"""Where the parameters of an exported program come from: its inputs, or what its trace made."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from torch_xdist.core.devices import transfer
from torch_xdist.core.record.symbolic_trace import SymbolicTrace
from torch_xdist.core.trace.values import Value
from torch_xdist.export.bundle import InputLocation, VariableSignature
from torch_xdist.export.modules import Signature

_KINDS = torch.export.graph_signature.InputKind


def numpy_dtype(dtype: torch.dtype) -> Any:
    """numpy's type for a dtype, None where there is none."""
    try:
        return np.dtype(str(dtype).removeprefix("torch.")).type
    except TypeError:
        return None


class Inputs:
    """The inputs of a program, flat: weights, buffers and constants, then the user's arguments.

    Attributes:
        tensors: those that are tensors, by their place.
    """

    def __init__(self, program: Any, args: tuple[Any, ...]) -> None:
        self._flat = list(program._graph_module_flat_inputs(args, {}))
        specs = list(program.graph_signature.input_specs)
        is_of_user = [spec.kind is _KINDS.USER_INPUT for spec in specs]
        self._positions = {
            place: sum(is_of_user[:place]) for place, is_user in enumerate(is_of_user) if is_user
        }
        self._names = {
            place: spec.target for place, spec in enumerate(specs) if not is_of_user[place]
        }
        self.tensors: dict[int, torch.Tensor] = {
            place: value
            for place, value in enumerate(self._flat)
            if isinstance(value, torch.Tensor)
        }

    def filled(self, tensors: Sequence[torch.Tensor]) -> list[Any]:
        """The inputs with others in the places of the tensors."""
        found = list(self._flat)
        for place, tensor in zip(self.tensors, tensors):
            found[place] = tensor
        return found

    def location(self, place: int) -> InputLocation:
        """Where the input of a place comes from."""
        if place in self._positions:
            return InputLocation.input_arg(self._positions[place])
        return InputLocation.parameter(self._names[place])

    def known(self, place: int | None) -> np.ndarray | None:
        """The array of a weight, a buffer or a constant; None for what the user gives."""
        if place is None or place not in self._names:
            return None
        return transfer.as_numpy(self.tensors[place].cpu())

    def unused(self, used: set[int]) -> list[tuple[InputLocation, VariableSignature]]:
        """The user's arguments that are not among the used."""
        return [
            (InputLocation.input_arg(position), _signature_of(self._flat[place]))
            for place, position in self._positions.items()
            if position not in used
        ]

    def state(self) -> dict[str, np.ndarray]:
        """The weights, buffers and constants, by their names."""
        return {
            self._names[place]: transfer.as_numpy(tensor.cpu())
            for place, tensor in self.tensors.items()
            if place in self._names
        }


def _signature_of(value: Any) -> VariableSignature:
    if isinstance(value, torch.Tensor):
        return VariableSignature(list(value.shape), str(value.dtype).removeprefix("torch."))
    return VariableSignature([], type(value).__name__)


def signature(found: Signature) -> VariableSignature:
    """What a function takes or gives, with -1 for a size that is open."""
    open_dims = [dim for dim, size in enumerate(found.shape) if size is None]
    shape = [-1 if size is None else size for size in found.shape]
    return VariableSignature(shape, found.dtype, open_dims)


class Constants:
    """What the trace of a program made of data of the host.

    Attributes:
        kept: those that are saved beside the weights.
    """

    def __init__(self, *, inline: bool) -> None:
        self._inline = inline
        self.kept: list[np.ndarray] = []

    def inlined(self, trace: SymbolicTrace) -> dict[int, np.ndarray]:
        """The numbers among them that are constants of the function, by slot."""
        found = {slot: _array(value) for value, slot in (trace.captured or {}).items()}
        return {
            slot: array
            for slot, array in found.items()
            if array.ndim == 0 and (self._inline or array in (0, 1))
        }

    def location(self, trace: SymbolicTrace, slot: int) -> InputLocation:
        """Keep what stands at a slot, which is a parameter."""
        (value,) = (value for value, place in (trace.captured or {}).items() if place == slot)
        return self.added(_array(value))

    def added(self, array: Any) -> InputLocation:
        """Keep an array."""
        self.kept.append(np.asarray(array))
        return InputLocation.constant(len(self.kept) - 1)


def _array(value: Value) -> np.ndarray:
    assert value.buffer is not None
    return np.asarray(value.buffer)
