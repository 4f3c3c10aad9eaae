"""Parameters joined into one flat one, which knows where each of them lies in it."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from torch_xdist.errors import ArgumentError

# (name of the module, module, name of the parameter)
Owner = tuple[str, nn.Module, str]


class State(NamedTuple):
    """What a flat parameter knows about its members, as it is pickled.

    Attributes:
        param_numels, param_shapes: of each.
        param_infos: the first owner of each.
        shared_param_infos: further ones of tied parameters: (name of the module, name of the first
            owner's, module, name, first owner, name there).
    """

    param_numels: list[int]
    param_shapes: list[torch.Size]
    param_infos: list[Owner]
    shared_param_infos: list[Any]


class _Flat(type(nn.Parameter)):  # type: ignore[misc]
    """A device tensor that is a flat parameter cannot have a class of its own."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, nn.Parameter) and hasattr(instance, "_param_numels")


class FlatParameter(nn.Parameter, metaclass=_Flat):
    """Parameters one behind the other, in one [n].

    Args:
        params: what is joined, of one dtype and device; none of them a FlatParameter.
    """

    _param_numels: list[int]
    _param_shapes: list[torch.Size]
    _param_infos: list[Owner]
    _shared_param_infos: list[Any]

    def __new__(cls, params: Sequence[torch.Tensor], requires_grad: bool = True) -> Any:
        _check(params)
        with torch.no_grad():
            data = torch.cat([p.detach().reshape(-1) for p in params])
        if data.device.type != "xla":
            return super().__new__(cls, data, requires_grad=requires_grad)
        flat = nn.Parameter(data, requires_grad=requires_grad)
        for name in ("metadata", "get_param_views"):
            setattr(flat, name, getattr(cls, name).__get__(flat))
        _describe(flat, params)
        return flat

    def __init__(self, params: Sequence[torch.Tensor], requires_grad: bool = True) -> None:
        _describe(self, params)

    def get_param_views(self, external_data: torch.Tensor | None = None) -> Iterator[torch.Tensor]:
        """The members as views of the flat parameter, or of `external_data` [n]."""
        data = self if external_data is None else external_data
        if data.numel() != sum(self._param_numels):
            raise ArgumentError(
                f"FlatParameter.get_param_views: the data has {data.numel()} elements, and the"
                f" members {sum(self._param_numels)}; give it a tensor of as many"
            )
        pieces = data.split(self._param_numels)
        return (piece.view(shape) for piece, shape in zip(pieces, self._param_shapes))

    def metadata(self) -> tuple[list[str], list[torch.Size], list[int]]:
        """Names, shapes and sizes of the members."""
        return list(map(name_of, self._param_infos)), self._param_shapes, self._param_numels

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """A copy on another device, or of another dtype, with the same members."""
        out = FlatParameter([self.data.to(*args, **kwargs)], self.requires_grad)
        _restore(out, _state(self))
        return out

    def __setstate__(self, state: State) -> None:
        _restore(self, state)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return FlatParameter, ([self.data], self.requires_grad), _state(self)


def name_of(owner: Owner) -> str:
    """A parameter's name in the module that holds all."""
    return f"{owner[0]}.{owner[2]}".lstrip(".")


def _check(params: Any) -> None:
    if not isinstance(params, list | tuple) or not params:
        raise ArgumentError(f"FlatParameter: params is {params!r}; give it a list of parameters")
    for param in params:
        if not isinstance(param, torch.Tensor):
            raise ArgumentError(
                f"FlatParameter: params holds a {type(param).__name__}; give it parameters"
            )
        if isinstance(param, FlatParameter):
            raise ArgumentError(
                "FlatParameter: params holds a flat parameter already; join its members instead"
            )


def _describe(flat: Any, params: Sequence[torch.Tensor]) -> None:
    numels, shapes = [p.numel() for p in params], [p.shape for p in params]
    _restore(flat, State(numels, shapes, [], []))


def _state(flat: Any) -> State:
    return State(
        list(flat._param_numels),
        list(flat._param_shapes),
        list(flat._param_infos),
        list(flat._shared_param_infos),
    )


def _restore(flat: Any, state: State) -> None:
    flat._param_numels, flat._param_shapes, flat._param_infos, flat._shared_param_infos = state
