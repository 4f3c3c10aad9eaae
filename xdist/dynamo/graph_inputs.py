"""The parts of torch_xla's bridge that scripts use by themselves.

They order the inputs and outputs of a graph that was compiled by `_xla_warm_up_cache` and is run by
`_run_cached_graph`.
"""

from collections.abc import Sequence
from typing import Any

import torch

from torch_xdist.dynamo.private_names import _unique_id_for_ir_and_data


class GraphInputMatcher:
    """Puts the arguments of a call in the order of a graph's inputs.

    Args:
        tensor_id_to_arg_idx: the place of each argument, by tensor id.
        graph_input_tensor_ids, graph_input_xla_values: of the graph's inputs, as
            `_get_tensors_xla_device_data_node` returns them.
        xla_args_tensor_id: the ids of the arguments; what is none of them stays as it is.
    """

    def __init__(
        self,
        tensor_id_to_arg_idx: dict[int, int],
        graph_input_tensor_ids: list[int],
        graph_input_xla_values: list[torch.tensor],  # type: ignore[valid-type]
        xla_args_tensor_id: set[int],
    ) -> None:
        self.tensor_id_to_arg_idx = tensor_id_to_arg_idx
        self.graph_input_tensor_ids = graph_input_tensor_ids
        # Arguments differ from call to call, so they are not kept.
        self.graph_input_xla_values = [
            None if tensor_id in xla_args_tensor_id else value
            for tensor_id, value in zip(graph_input_tensor_ids, graph_input_xla_values)
        ]

    def __call__(self, args: Sequence[Any]) -> list[Any]:
        """The graph's inputs for a call with these arguments."""
        places = [self.tensor_id_to_arg_idx.get(i) for i in self.graph_input_tensor_ids]
        return [
            value if place is None else args[place]
            for place, value in zip(places, self.graph_input_xla_values)
        ]


class Deduper:
    """Drops what a list has several times, and puts it back."""

    def __init__(self) -> None:
        self.permute_for_orig: list[int] | None = None

    def dedup(self, origlist: Sequence[Any]) -> list[Any]:
        """The different elements; tensors are the same where they hold the same value."""
        places: dict[int, int] = {}
        kept: list[Any] = []
        self.permute_for_orig = []
        for item in origlist:
            key = _unique_id_for_ir_and_data(item) if isinstance(item, torch.Tensor) else id(item)
            if key not in places:
                places[key] = len(kept)
                kept.append(item)
            self.permute_for_orig.append(places[key])
        return kept

    def recover(self, deduped_list: Sequence[Any]) -> list[Any]:
        """A list like the one before, of these elements."""
        if self.permute_for_orig is None:
            raise ValueError("Deduper.recover: no list was deduplicated; call dedup first")
        return [deduped_list[place] for place in self.permute_for_orig]


class SpecialReturnHandler:
    """Completes what a graph returns: inputs that it returns as they are, and numbers.

    Args:
        trace_inputs, trace_outputs: the tensors of the recording.
        trace_inputs_inplace_update_bool: for each input whether the graph writes it.
        constant_outputs_and_indexes: (place, number) of the outputs that are no tensors.
    """

    def __init__(
        self,
        trace_inputs: Sequence[torch.Tensor],
        trace_outputs: Sequence[torch.Tensor],
        trace_inputs_inplace_update_bool: Sequence[bool],
        constant_outputs_and_indexes: Sequence[tuple[int, Any]],
    ) -> None:
        self.constant_outputs_and_indexes = constant_outputs_and_indexes
        self.deduper = Deduper()
        outputs = self.deduper.dedup(trace_outputs)
        places = {id(tensor): place for place, tensor in enumerate(trace_inputs)}
        self.trace_outputs_pos_to_inputs_pos = [
            (position, places[id(tensor)])
            for position, tensor in enumerate(outputs)
            if id(tensor) in places and not trace_inputs_inplace_update_bool[places[id(tensor)]]
        ]

    def addDumbReturn(self, real_inputs: Sequence[Any], real_outputs: list[Any]) -> list[Any]:
        """What the function returns, of what the graph did; `real_outputs` is changed."""
        for position, place in self.trace_outputs_pos_to_inputs_pos:
            real_outputs.insert(position, real_inputs[place])
        returned = self.deduper.recover(real_outputs)
        for position, value in self.constant_outputs_and_indexes:
            returned.insert(position, value)
        return returned


class NoneRemover:
    """Takes None out of what a graph returns, and puts it back."""

    def __init__(self) -> None:
        self.none_poslist: list[int] = []

    def remove_nones(self, value_list: Any) -> Any:
        """The values that are not None; a list is changed and returned."""
        _check(value_list)
        self.none_poslist += [place for place, value in enumerate(value_list) if value is None]
        kept = [value for value in value_list if value is not None]
        if isinstance(value_list, tuple):
            return tuple(kept)
        value_list[:] = kept
        return value_list

    def add_nones(self, value_list: Any) -> Any:
        """The values with None where it was; a list is changed and returned."""
        _check(value_list)
        values = list(value_list)
        for place in self.none_poslist:
            values.insert(place, None)
        if isinstance(value_list, tuple):
            return tuple(values)
        value_list[:] = values
        return value_list


def _check(value_list: Any) -> None:
    if not isinstance(value_list, list | tuple):
        raise TypeError(
            "NoneRemover: value_list must be a list or a tuple; it is a"
            f" {type(value_list).__name__}"
        )
