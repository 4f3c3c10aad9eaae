"""The module between an FSDP wrapper and the user's: its parameters may be joined into flat ones.

Its names are those of torch_xla's checkpoints: `_fpw_module` is left out of the keys of a state
dict, and a group of joined parameters is called `flat_param_N`.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from torch_xdist.ranks.fsdp.flat_parameter import FlatParameter, Owner, name_of

Metadata = tuple[list[str], list[torch.Size], list[int]]
_INNER = "_fpw_module."


class FlatModule(nn.Module):
    """A module whose parameters are joined in groups, and out of its modules.

    Args:
        module: what is wrapped.
        groups: the parameters that are joined; those of no group stay as they are.
        names: what follows `flat_param_`, for each group; default the numbers.
    """

    def __init__(
        self,
        module: nn.Module,
        groups: Sequence[Sequence[nn.Parameter]],
        names: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        self._fpw_module = module
        groups = [group for group in groups if group]
        names = [str(index) for index in range(len(groups))] if names is None else names
        self.flat_param_names = [f"flat_param_{name}" for name in names]
        self._joined: list[nn.Parameter] = []
        # For each flat parameter, its members: every name of each, the first one first.
        self.members: list[list[list[Owner]]] = []
        self.shapes: list[list[torch.Size]] = []
        for name, group in zip(self.flat_param_names, groups, strict=True):
            self._join(name, group)
        self._register_state_dict_hook(_without_inner)
        self.register_load_state_dict_pre_hook(_with_inner)

    @property
    def module(self) -> nn.Module:
        """The wrapped module."""
        return self._fpw_module

    @torch.no_grad()
    def _join(self, name: str, group: Sequence[nn.Parameter]) -> None:
        members = list(owners_of(self, group).values())
        found = [getattr(names[0][1], names[0][2]) for names in members]
        flat = FlatParameter(found, found[0].requires_grad)
        flat._param_infos = [names[0] for names in members]
        flat._shared_param_infos = [
            (module_name, names[0][0], module, one, *names[0][1:])
            for names in members
            for module_name, module, one in names[1:]
        ]
        self.register_parameter(name, flat)
        self._joined.append(flat)
        self.members.append(members)
        self.shapes.append([p.shape for p in found])
        for names in members:
            for _, module, one in names:
                module._parameters.pop(one, None)

    def metadata(self, flat_param_idx: int) -> Metadata:
        """Names, shapes and sizes of the members of a flat parameter."""
        shapes = self.shapes[flat_param_idx]
        names = [name_of(names[0]) for names in self.members[flat_param_idx]]
        return names, list(shapes), [shape.numel() for shape in shapes]

    def forward(self, *inputs: Any, **kwinputs: Any) -> Any:
        """The wrapped module's."""
        return self._fpw_module(*inputs, **kwinputs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("_fpw_module"), name)

    def __getitem__(self, key: Any) -> Any:
        return self._fpw_module[key]  # type: ignore[index]


def owners_of(
    module: nn.Module, parameters: Sequence[nn.Parameter]
) -> dict[nn.Parameter, list[Owner]]:
    """Where each parameter is found below `module`: (name of the module, module, name)."""
    wanted = set(parameters)
    owners: dict[nn.Parameter, list[Owner]] = {}
    for module_name, part in module.named_modules(remove_duplicate=False):
        for name, parameter in part._parameters.items():
            if parameter is not None and parameter in wanted:
                owners.setdefault(parameter, []).append((module_name, part, name))
    return owners


def _without_inner(module: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
    rename(state, prefix + _INNER, prefix)


def _with_inner(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    ours = {prefix + name for name in module._parameters}
    for name in [name for name in state if name.startswith(prefix) and name not in ours]:
        state[prefix + _INNER + name.removeprefix(prefix)] = state.pop(name)


def rename(state: dict[str, Any], old: str, new: str) -> None:
    """Give every key that starts with `old` the beginning `new`, in place and in order."""
    for name in list(state):
        value = state.pop(name)
        state[new + name.removeprefix(old) if name.startswith(old) else name] = value
