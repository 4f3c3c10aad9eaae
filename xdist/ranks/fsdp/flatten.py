"""The module between an FSDP wrapper and the user's: it can join parameters into flat ones.

Its names are those of torch_xla's checkpoints: `_fpw_module` is left out of the keys of a state
dict, and a group of joined parameters is called `flat_param_N`.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

Owner = tuple[str, nn.Module, str]
Metadata = tuple[list[str], list[torch.Size], list[int]]
_INNER = "_fpw_module."


class XlaFlattenParamsWrapper(nn.Module):
    """A module whose parameters are joined in groups.

    Args:
        module: what is wrapped.
        param_list: the groups; parameters of no group stay as they are. None: all in one group.
    """

    def __init__(
        self, module: nn.Module, param_list: Sequence[Sequence[nn.Parameter]] | None = None
    ) -> None:
        super().__init__()
        self._fpw_module = module
        self.flat_params: list[nn.Parameter] = []
        # For each flat parameter, its members: every name of each, the first one first.
        self.members: list[list[list[Owner]]] = []
        self.shapes: list[list[torch.Size]] = []
        for group in [list(module.parameters())] if param_list is None else param_list:
            if group:
                self._join(group)
        self._register_state_dict_hook(_without_inner)
        self.register_load_state_dict_pre_hook(_with_inner)

    @property
    def module(self) -> nn.Module:
        """The wrapped module."""
        return self._fpw_module

    @torch.no_grad()
    def _join(self, group: Sequence[nn.Parameter]) -> None:
        owners = owners_of(self, group)
        members = list(owners.values())
        parameters = [getattr(module, name) for _, module, name in (names[0] for names in members)]
        flat = torch.cat([p.detach().reshape(-1) for p in parameters])
        joined = nn.Parameter(flat, requires_grad=parameters[0].requires_grad)
        self.register_parameter(f"flat_param_{len(self.flat_params)}", joined)
        self.flat_params.append(joined)
        self.members.append(members)
        self.shapes.append([p.shape for p in parameters])
        for names in members:
            for _, module, name in names:
                module._parameters.pop(name, None)

    def metadata(self, index: int = 0) -> Metadata:
        """Names, shapes and sizes of the members of a flat parameter."""
        shapes = self.shapes[index]
        names = [f"{owner[0]}.{owner[2]}".lstrip(".") for owner, *_ in self.members[index]]
        return names, list(shapes), [shape.numel() for shape in shapes]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The wrapped module's."""
        return self._fpw_module(*args, **kwargs)

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
