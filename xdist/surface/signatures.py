"""Whether a call that was right for one signature is right for another."""

import ast
import inspect
from inspect import Parameter, Signature

# The default of a parameter whose value the text does not say.
UNSAID = ...
_BY_PLACE = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def parse(text: str) -> Signature:
    """`(x, *, dim=0)` as a signature; a default that is no literal is written as `...`."""
    (function,) = ast.parse(f"def f{text}: pass").body
    assert isinstance(function, ast.FunctionDef)
    given = function.args
    by_place = [*given.posonlyargs, *given.args]
    required = len(by_place) - len(given.defaults)
    parameters = []
    for place, argument in enumerate(by_place):
        kind = _BY_PLACE[place >= len(given.posonlyargs)]
        node = given.defaults[place - required] if place >= required else None
        default = Parameter.empty if node is None else ast.literal_eval(node)
        parameters.append(Parameter(argument.arg, kind, default=default))
    if given.vararg:
        parameters.append(Parameter(given.vararg.arg, Parameter.VAR_POSITIONAL))
    for argument, node in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        default = Parameter.empty if node is None else ast.literal_eval(node)
        parameters.append(Parameter(argument.arg, Parameter.KEYWORD_ONLY, default=default))
    if given.kwarg:
        parameters.append(Parameter(given.kwarg.arg, Parameter.VAR_KEYWORD))
    return Signature(parameters)


def differences(theirs: Signature, ours: Signature) -> list[str]:
    """What a caller of `theirs` would meet in `ours`; nothing where every call still holds."""
    found = []
    own = dict(ours.parameters)
    places = [p.name for p in own.values() if p.kind in _BY_PLACE]
    takes_places = any(p.kind is Parameter.VAR_POSITIONAL for p in own.values())
    takes_names = any(p.kind is Parameter.VAR_KEYWORD for p in own.values())
    asked = set()
    for place, parameter in enumerate(theirs.parameters.values()):
        name = parameter.name
        if parameter.kind is Parameter.VAR_POSITIONAL:
            found += [] if takes_places else [f"takes no *{name}"]
            continue
        if parameter.kind is Parameter.VAR_KEYWORD:
            found += [] if takes_names else [f"takes no **{name}"]
            continue
        asked.add(name)
        if name not in own:
            if not (takes_names and (takes_places or parameter.kind is Parameter.KEYWORD_ONLY)):
                found.append(f"has no {name}")
            continue
        # Where ours has *args and the name by keyword only, it takes the value by place too.
        by_place = own[name].kind is not Parameter.KEYWORD_ONLY or not takes_places
        if parameter.kind in _BY_PLACE and by_place and places[place : place + 1] != [name]:
            found.append(f"{name} is not argument {place + 1}")
        found += _default_differs(parameter, own[name])
    for parameter in own.values():
        is_named = parameter.kind in (*_BY_PLACE, Parameter.KEYWORD_ONLY)
        if is_named and parameter.name not in asked and parameter.default is Parameter.empty:
            found.append(f"needs {parameter.name}")
    return found


def _default_differs(theirs: Parameter, ours: Parameter) -> list[str]:
    if theirs.default is Parameter.empty:
        return []
    if ours.default is Parameter.empty:
        return [f"needs {ours.name}"]
    if theirs.default is UNSAID:
        return []
    # None stands here for a default that is found at the call; a list nobody changes is a tuple.
    if ours.default is None or _plain(theirs.default) == _plain(ours.default):
        return []
    return [f"{ours.name} is {ours.default!r}, not {theirs.default!r}"]


def _plain(default: object) -> object:
    return tuple(default) if isinstance(default, list) else default


def of(function: object) -> Signature | None:
    """Its signature; None for what does not say one."""
    try:
        return inspect.signature(function)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
