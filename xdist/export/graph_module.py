"""A model as StableHLO, which is called like the model it was made of."""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from torch_xdist.core.devices import device, transfer
from torch_xdist.core.devices.tensor import wrap
from torch_xdist.core.trace.tensor_types import dense_type
from torch_xdist.core.trace.values import Value
from torch_xdist.dtypes import to_torch
from torch_xdist.errors import CheckpointError
from torch_xdist.export.bundle import (
    StableHLOFunctionMeta,
    StableHLOModelBundle,
    VariableType,
    call_parameters,
    function_of,
    load_bundle,
    save_bundle,
)
from torch_xdist.export.run import run_stablehlo


@dataclass
class StableHLOExportOptions:
    """How a program is exported.

    Attributes:
        include_human_readable_text: keep the text beside the bytecode.
        override_tracing_arguments, override_tracing_kwargs: instead of the program's examples.
        save_weights: write the weights to disk.
        inline_all_constant: every Python number is a constant, not only 0 and 1.
        export_weights: keep the weights in the bundle.
        custom_ops_allowed_in_graph: namespaces whose operators become custom calls.
        export_node_metadata: put what torch knows of each node into the locations.
    """

    include_human_readable_text: bool = True
    override_tracing_arguments: tuple[Any, ...] | None = None
    override_tracing_kwargs: Mapping[str, Any] | None = None
    save_weights: bool = True
    inline_all_constant: bool = True
    export_weights: bool = True
    custom_ops_allowed_in_graph: set[str] = field(default_factory=set)
    export_node_metadata: bool = False


class StableHLOGraphModule:
    """A model as StableHLO, which is called like the model it was made of."""

    def __init__(self, bundle: StableHLOModelBundle) -> None:
        self._bundle = bundle
        self._default_method = bundle.stablehlo_funcs[0].meta.name
        # By device, and by the id of an array, which the bundle holds as long as this lives.
        self._on_devices: dict[tuple[int, int], torch.Tensor] = {}

    def evaluate(self, method_name: str, args: Sequence[Any]) -> Any:
        """Call one of its functions; the results are on the device."""
        func = function_of(self._bundle, method_name)
        flat = list(args)
        if func.meta.input_pytree_spec is not None:
            flat = pytree.tree_leaves(tuple(args))
        values = call_parameters(flat, func.meta, self._bundle)
        of_call = [where.type_ is VariableType.INPUT_ARG for where in func.meta.input_locations]
        given = [_tensor(v) if new else self._kept(v) for v, new in zip(values, of_call)]
        results = run_stablehlo(func.bytecode, given)
        if func.meta.output_pytree_spec is None:
            return results
        return pytree.tree_unflatten(results, _structure(func.meta))

    def __call__(self, *args: Any) -> Any:
        return self.evaluate(self._default_method, args)

    def get_stablehlo_bytecode(self, method_name: str | None = None) -> bytes:
        """A function (default: the first) as a portable artifact of StableHLO."""
        return function_of(self._bundle, method_name).bytecode

    def get_stablehlo_text(self, method_name: str | None = None) -> str | None:
        """A function (default: the first) as text; None where it was left out."""
        return function_of(self._bundle, method_name).text

    def save(
        self,
        directory_path: str | os.PathLike[str],
        options: StableHLOExportOptions | None = None,
    ) -> None:
        """Write it to a folder."""
        save_bundle(self._bundle, directory_path, options)

    @classmethod
    def load(cls, directory_path: str | os.PathLike[str]) -> "StableHLOGraphModule":
        """What `save` wrote, or torch_xla's."""
        return cls(load_bundle(directory_path))

    def _kept(self, value: np.ndarray) -> torch.Tensor:
        """A weight or a constant of the bundle as a tensor, which goes to each device once."""
        key = device.default_index(), id(value)
        if key not in self._on_devices:
            self._on_devices[key] = _on_device(value)
        return self._on_devices[key]


# In torch's text of a structure: a module that reading it imports, and what a dict calls later.
_IMPORTED = re.compile(r"\b(?:fqn|default_factory_module)\W+([\w.]+)")
_CALLED = re.compile(r"\bdefault_factory_name\W+(\w+)")
_HARMLESS = {"bool", "dict", "float", "int", "list", "set", "str", "tuple"}


def _structure(meta: StableHLOFunctionMeta) -> pytree.TreeSpec:
    """The structure of a function's results.

    Raises CheckpointError where the text would import or call what nobody here asked for.
    """
    text = meta.output_pytree_spec or ""
    named = {name for name in _IMPORTED.findall(text) if name not in sys.modules}
    named |= {name for name in _CALLED.findall(text) if name not in _HARMLESS}
    if named:
        raise CheckpointError(
            f"StableHLO {meta.name!r}: the structure of its results asks for"
            f" {', '.join(sorted(named))}, and what is in a file must not import or call things;"
            " import modules before, if you trust it, and return plain dicts, lists and tuples"
        )
    return pytree.treespec_loads(text)


def _tensor(value: Any) -> torch.Tensor:
    """An argument of a call as a tensor; an array may hold something else at the next call."""
    if isinstance(value, np.ndarray):
        return _on_device(value)
    return value if isinstance(value, torch.Tensor) else torch.tensor(value)


def _on_device(array: np.ndarray) -> torch.Tensor:
    """A copy of an array on this thread's device."""
    trace = device.trace_of(device.default_index())
    value = Value(dense_type(array.shape, to_torch(array.dtype)), trace)
    value.buffer = transfer.put(array, trace.device)  # type: ignore[assignment]
    return wrap(value)
