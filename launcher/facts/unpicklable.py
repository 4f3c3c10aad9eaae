"""Find which part of an object cannot be pickled, and say its path as a user would write it.

The object is taken apart where pickling takes it apart: closures, globals and defaults of
functions that go by value, items, attributes. Only run after pickling the whole has failed.
"""

import functools
import re
import types
from collections.abc import Iterator, Mapping
from typing import Any

import cloudpickle

_DEEPEST = 40
# torch.nn.Module keeps its children in dicts, and answers for them as attributes.
_MODULE_DICT = re.compile(r"\._(?:modules|parameters|buffers)\['([A-Za-z_]\w*)'\]")


def path_of_unpicklable(
    named: Mapping[str, Any], error: BaseException
) -> tuple[str, Any, BaseException]:
    """(path, the object there, why) of the innermost part that cannot be pickled by itself.

    Args:
        named: the objects that were pickled together, by the name to start their path with.
        error: what pickling all of them said; the answer's reason where no part fails alone.
    """
    for name, value in named.items():
        reason = _refusal(value)
        if reason is not None:
            path, culprit, reason = _innermost(name, value, reason)
            return _MODULE_DICT.sub(r".\1", path), culprit, reason
    return " and ".join(named), tuple(named.values()), error


def _innermost(path: str, value: Any, reason: BaseException) -> tuple[str, Any, BaseException]:
    seen = {id(value)}
    for _ in range(_DEEPEST):
        for step, part in _parts(value):
            if id(part) in seen:
                continue
            seen.add(id(part))
            refusal = _refusal(part)
            if refusal is not None:
                path, value, reason = path + step, part, refusal
                break
        else:
            break
    return path, value, reason


def _refusal(value: Any) -> BaseException | None:
    try:
        cloudpickle.dumps(value)
    except (Exception, RecursionError) as error:
        return error
    return None


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """(how to write the step, the part) of everything pickling goes into from here."""
    if isinstance(value, types.FunctionType):
        yield from _function_parts(value)
    elif isinstance(value, types.MethodType):
        yield ".__self__", value.__self__
        yield ".__func__", value.__func__
    elif isinstance(value, functools.partial):
        yield ".func", value.func
        yield ".args", value.args
        yield ".keywords", value.keywords
    elif isinstance(value, type):
        yield from ((f".{name}", part) for name, part in vars(value).items() if _is_own(name))
    else:
        yield from _items(value)
        yield from _attributes(value)


def _function_parts(fn: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        try:
            yield f".__closure__[{name!r}]", cell.cell_contents
        except ValueError:
            continue
    for name in _global_names(fn.__code__):
        if name in fn.__globals__:
            yield f".__globals__[{name!r}]", fn.__globals__[name]
    yield ".__defaults__", fn.__defaults__
    yield ".__kwdefaults__", fn.__kwdefaults__
    yield from ((f".{name}", part) for name, part in vars(fn).items())


def _global_names(code: types.CodeType) -> list[str]:
    """The names a function may look up as globals, those of functions inside it too."""
    names = list(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names += _global_names(constant)
    return names


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, part in list(value.items()):
            yield f"[{key!r}]", part
            yield f".keys() {key!r}", key
    elif isinstance(value, list | tuple):
        yield from ((f"[{index}]", part) for index, part in enumerate(value))
    elif isinstance(value, set | frozenset):
        yield from ((f"{{{part!r}}}", part) for part in list(value))


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    try:
        state = value.__getstate__()
    except Exception:
        state = None
    # With __slots__ the state is a pair: what is in __dict__, what is in the slots.
    for names in state if isinstance(state, tuple) else (state,):
        if isinstance(names, dict):
            yield from ((f".{name}", part) for name, part in list(names.items()))


def _is_own(name: str) -> bool:
    return not (name.startswith("__") and name.endswith("__"))
