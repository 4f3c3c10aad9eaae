"""torch_xla's wrapper that joins a module's parameters into flat ones, for use by itself.

Its modules see views of the flat parameters, so an optimizer has a few large ones to step. FSDP has
`FlatModule` instead, whose flat parameters are divided.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from torch_xdist.errors import ArgumentError
from torch_xdist.ranks.fsdp.flat_parameter import Owner
from torch_xdist.ranks.fsdp.flatten import FlatModule, Metadata

Groups = Sequence[Sequence[nn.Parameter]] | Sequence[nn.Parameter] | None


class XlaFlattenParamsWrapper(FlatModule):
    """A module whose parameters are joined in groups; its own names stay in its state dict.

    Args:
        module: what is wrapped.
        param_list: the groups, or the parameters of one; others stay as they are. None: all in one.
        flat_param_names: what follows `flat_param_`, for each group; default the numbers.
        auto_unflatten_state_dict: False: `state_dict` has the flat parameters.
    """

    def __init__(
        self,
        module: nn.Module,
        param_list: Groups = None,
        flat_param_names: Sequence[str] | None = None,
        auto_unflatten_state_dict: bool = True,
    ) -> None:
        groups = _groups(list(module.parameters()) if param_list is None else list(param_list))
        _check(groups, flat_param_names)
        orders = [(part, list(part._parameters)) for part in module.modules()]
        super().__init__(module, groups, flat_param_names)
        self._orders = orders
        self._auto_unflatten_state_dict = auto_unflatten_state_dict
        self.is_flattened = True
        self.num_params_managed = sum(len(set(group)) for group in groups)
        self._put_views()

    @property
    def flat_params(self) -> list[nn.Parameter]:
        """The flat parameters; [] inside `unflatten_params`."""
        return [getattr(self, n) for n in self.flat_param_names] if self.is_flattened else []

    @property
    def flat_param(self) -> nn.Parameter:
        """The flat parameter, where there is one."""
        if len(self.flat_params) != 1:
            raise ArgumentError(
                f"XlaFlattenParamsWrapper.flat_param: there are {len(self.flat_params)}; use"
                " flat_params"
            )
        return self.flat_params[0]

    def get_param_views(
        self, external_data_list: Sequence[torch.Tensor | None] | None = None
    ) -> Iterator[torch.Tensor]:
        """The members of all flat parameters, as views of these, or of what is given for each."""
        flat = self.flat_params
        given = [None] * len(flat) if external_data_list is None else list(external_data_list)
        if len(given) != len(flat):
            raise ArgumentError(
                f"XlaFlattenParamsWrapper.get_param_views: {len(given)} tensors for {len(flat)}"
                " flat parameters; give one, or None, for each"
            )
        for own, other, shapes in zip(flat, given, self.shapes):
            data = own if other is None else other
            # A flat parameter that a call of .to() replaced does not know its members.
            pieces = data.split([shape.numel() for shape in shapes])
            yield from (piece.view(shape) for piece, shape in zip(pieces, shapes))

    def metadata(self, flat_param_idx: int) -> Metadata:
        """Names, shapes and sizes of the members of a flat parameter."""
        return super().metadata(flat_param_idx)

    def _owners(self) -> list[list[Owner]]:
        return [names for members in self.members for names in members]

    def _put_views(self) -> None:
        for names, view in zip(self._owners(), self.get_param_views()):
            for _, module, name in names:
                setattr(module, name, view)

    @contextlib.contextmanager
    def unflatten_params(self, flat_params: Sequence[torch.Tensor] | None = None) -> Iterator[None]:
        """The parameters as they were, for a while; what is written to them stays.

        Args:
            flat_params: values for that time only, one [n] for each flat parameter.
        """
        if not self.is_flattened:
            if flat_params is not None:
                raise ArgumentError(
                    "unflatten_params: the module is unflattened already, so it has no place for"
                    " other values; leave the block first"
                )
            yield
            return
        flat, views = self.flat_params, list(self.get_param_views(flat_params))
        self._unjoin(views, [p.requires_grad for p, s in zip(flat, self.shapes) for _ in s])
        try:
            yield
        finally:
            self._rejoin(flat, write=flat_params is None)

    def _unjoin(self, views: Sequence[torch.Tensor], needs_grad: Sequence[bool]) -> None:
        for name in self.flat_param_names:
            del self._parameters[name]
        self.is_flattened = False
        for names, view, needs in zip(self._owners(), views, needs_grad, strict=True):
            parameter = nn.Parameter(view.detach(), requires_grad=needs)
            for _, module, name in names:
                module.__dict__.pop(name, None)
                module.register_parameter(name, parameter)
        for module, order in self._orders:
            for name in order:
                module._parameters[name] = module._parameters.pop(name)

    def _rejoin(self, flat: Sequence[nn.Parameter], *, write: bool) -> None:
        values = [names[0][1]._parameters[names[0][2]] for names in self._owners()]
        for names in self._owners():
            for _, module, name in names:
                del module._parameters[name]
        for name, parameter in zip(self.flat_param_names, flat):
            self.register_parameter(name, parameter)
        self.is_flattened = True
        if write:
            self._write(values)
        self._put_views()

    @torch.no_grad()
    def _write(self, values: Sequence[Any]) -> None:
        """Keep what took the place of a member: `load_state_dict(assign=True)`, `.data =`."""
        for view, value in zip(self.get_param_views(), values):
            if value is not None and value.data_ptr() != view.data_ptr():
                view.copy_(value)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The wrapped module's, with its own names; with the flat ones where that was asked for."""
        if not self._auto_unflatten_state_dict:
            return super().state_dict(*args, **kwargs)
        with self.unflatten_params():
            return super().state_dict(*args, **kwargs)

    def flat_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The state dict with the flat parameters."""
        return super().state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        """Take what `state_dict` or `flat_state_dict` gave."""
        state = dict(state_dict)
        if "flat_param" in state:  # Of the time when there was one.
            state["flat_param_0"] = state.pop("flat_param")
        if not self.flat_param_names or self.flat_param_names[0] in state:
            return super().load_state_dict(state, strict, assign)
        with self.unflatten_params():
            return super().load_state_dict(state, strict, assign)

    def forward(self, *inputs: Any, **kwinputs: Any) -> Any:
        """The wrapped module's, of views of the flat parameters."""
        if self.is_flattened:
            self._put_views()
        return super().forward(*inputs, **kwinputs)


def _groups(given: list[Any]) -> list[list[nn.Parameter]]:
    lists = [given] if given and isinstance(given[0], torch.Tensor) else given
    return [list(dict.fromkeys(group)) for group in lists if group]


def _check(groups: list[list[nn.Parameter]], names: Sequence[str] | None) -> None:
    distinct = {parameter for group in groups for parameter in group}
    if len(distinct) != sum(map(len, groups)):
        raise ArgumentError(
            "XlaFlattenParamsWrapper: a parameter is in two groups of param_list; name it in one"
        )
    if names is not None and not len(names) == len(set(names)) == len(groups):
        raise ArgumentError(
            f"XlaFlattenParamsWrapper: flat_param_names is {list(names)} for {len(groups)} groups;"
            " give each a name of its own"
        )
    for group in groups:
        kinds = {(p.dtype, p.requires_grad) for p in group}
        if len(kinds) > 1:
            raise ArgumentError(
                f"XlaFlattenParamsWrapper: a group has parameters of {len(kinds)} kinds of dtype"
                " and requires_grad; put each kind in a group of its own"
            )


def replace_by_prefix_(state_dict: dict[str, Any], old_prefix: str, new_prefix: str) -> None:
    """Give every key that starts with `old_prefix` the beginning `new_prefix`, in place."""
    if old_prefix == new_prefix:
        raise ArgumentError(
            f"replace_by_prefix_: both prefixes are {old_prefix!r}; they must be distinct"
        )
    for key in [key for key in state_dict if key.startswith(old_prefix)]:
        state_dict[new_prefix + key.removeprefix(old_prefix)] = state_dict.pop(key)
