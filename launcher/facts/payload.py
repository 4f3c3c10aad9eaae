"""What travels between the caller of `spawn` and its ranks: a call, its results, its exceptions.

Functions and classes of `__main__`, closures, lambdas and notebook cells go by value; so does what
a fresh process could not import. What cannot be pickled is named by its path before anything
starts. Bytes are only opened by who has authenticated their sender.
"""

import contextlib
import importlib
import io
import linecache
import multiprocessing
import os
import pickle
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType, TracebackType
from typing import Any

import cloudpickle

from torch_xdist.launcher.facts.errors import PayloadError, RankFailedError
from torch_xdist.launcher.facts.unpicklable import path_of_unpicklable

_OWN_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
# What pickling raises is up to the object: its own __reduce__ runs.
_REFUSALS = (Exception, RecursionError)


class RankTraceback(Exception):
    """The traceback of an exception in a rank, as text; the cause of the one raised here."""

    def __str__(self) -> str:
        return "\n" + str(self.args[0])


def dumps(fn: Callable[..., Any], args: Sequence[Any] = ()) -> bytes:
    """A call as bytes, with what another process needs to make it: import path, sources, key.

    Raises:
        PayloadError: something in it cannot be pickled; the message names it by its path, such as
            `fn.__closure__['model']._lock`.
    """
    named = {"fn": fn, **{f"args[{index}]": value for index, value in enumerate(args)}}
    with _by_value(_foreign_modules([fn, *args])):
        call = _pickled((fn, tuple(args)), named, "spawn")
    return pickle.dumps(
        {
            "path": [entry or os.getcwd() for entry in sys.path],
            "sources": _sources_in_memory(fn),
            # Proxies of a multiprocessing manager are refused by it without this key.
            "key": bytes(multiprocessing.current_process().authkey),
            "call": call,
        }
    )


def loads(data: bytes) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The function and arguments that `dumps` was given. Sets sys.path to the caller's first.

    Raises:
        PayloadError: it cannot be unpickled here, mostly for a module that cannot be imported.
    """
    sent = pickle.loads(data)
    sys.path[:] = sent["path"]
    multiprocessing.current_process().authkey = sent["key"]
    for name, text in sent["sources"].items():
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    fn, args = _unpickled(sent["call"], "the function and its arguments")
    return fn, args


def dumps_value(value: Any, name: str = "result") -> bytes:
    """A result as bytes.

    Raises:
        PayloadError: something in it cannot be pickled, named by its path from `name`.
    """
    with _by_value(_foreign_modules([value])):
        return _pickled(value, {name: value}, "result of a rank")


def loads_value(data: bytes, name: str = "the result") -> Any:
    """What `dumps_value` was given.

    Raises:
        PayloadError: it cannot be unpickled here.
    """
    return _unpickled(data, name)


def dumps_exception(error: BaseException) -> bytes:
    """An exception as bytes, or b"" where it cannot be pickled or would not come back."""
    try:
        data = cloudpickle.dumps(error)
        return data if isinstance(pickle.loads(data), BaseException) else b""
    except _REFUSALS:
        return b""


def loads_exception(data: bytes, text: str, *, rank: int, exit_code: int = 1) -> BaseException:
    """The exception of a rank, its traceback there as the cause; a RankFailedError without one.

    Args:
        data: from `dumps_exception`; may be empty or unreadable here.
        text: the traceback as text; it is shown in either case.
    """
    try:
        error = pickle.loads(data) if data else None
    except _REFUSALS:
        error = None
    if not isinstance(error, BaseException):
        last = text.strip().splitlines()[-1] if text.strip() else "no traceback"
        return RankFailedError(f"rank {rank} failed: {last}\n\n{text}", exit_code, rank)
    error.__cause__ = RankTraceback(text)
    return error


def traceback_text(error: BaseException) -> str:
    """The traceback as Python prints it, without the launcher's own frames above the user's."""
    place: TracebackType | None = error.__traceback__
    while place is not None and place.tb_next is not None and _is_ours(place):
        place = place.tb_next
    return "".join(traceback.format_exception(type(error), error, place))


def _is_ours(place: TracebackType) -> bool:
    return os.path.abspath(place.tb_frame.f_code.co_filename).startswith(_OWN_FOLDER)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def reducer_override(self, obj: Any) -> Any:
        # A module of a class of its own, such as torch.ops, which cloudpickle takes for an object.
        if isinstance(obj, ModuleType) and type(obj).__reduce__ is object.__reduce__:
            name = obj.__name__
            if type(obj) is not ModuleType and sys.modules.get(name) is obj:
                return importlib.import_module, (name,)
        return super().reducer_override(obj)


def _pickled(value: Any, named: dict[str, Any], where: str) -> bytes:
    try:
        with io.BytesIO() as data:
            _Pickler(data).dump(value)
            return data.getvalue()
    except _REFUSALS as error:
        path, culprit, reason = path_of_unpicklable(named, error)
        raise PayloadError(
            f"{where}: {path} ({_kind(culprit)}) cannot be pickled: {reason}; make it inside the "
            "function that runs in the rank, or send what it is made from"
        ) from None


def _unpickled(data: bytes, name: str) -> Any:
    try:
        return pickle.loads(data)
    except _REFUSALS as error:
        raise PayloadError(
            f"{name} cannot be unpickled here: {type(error).__name__}: {error}; its modules must "
            "be importable on both sides, in the same versions"
        ) from error


def _kind(value: Any) -> str:
    kind = type(value)
    return (
        kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
    )


@contextlib.contextmanager
def _by_value(modules: Sequence[ModuleType]) -> Iterator[None]:
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


def _foreign_modules(values: Sequence[Any]) -> list[ModuleType]:
    """The modules of these functions and objects that a fresh process would not find by name."""
    found: dict[str, ModuleType] = {}
    for value in values:
        value = getattr(value, "func", value)
        name = getattr(value, "__module__", None) or type(value).__module__
        module = sys.modules.get(name) if isinstance(name, str) else None
        registered = cloudpickle.list_registry_pickle_by_value()
        if module is not None and name not in registered and not _is_importable(name):
            found[name] = module
    return list(found.values())


def _is_importable(name: str) -> bool:
    """Whether a search finds the module; `__main__`, which cloudpickle sends itself, counts."""
    if name == "__main__" or name in sys.builtin_module_names:
        return True
    parent = name.rpartition(".")[0]
    places = getattr(sys.modules.get(parent), "__path__", None) if parent else None
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        try:
            if find is not None and find(name, places) is not None:
                return True
        except (ImportError, AttributeError, ValueError):
            continue
    return False


def _sources_in_memory(fn: Any) -> dict[str, str]:
    """The source of a function that is in no file (a notebook cell), for tracebacks."""
    code = getattr(getattr(fn, "func", fn), "__code__", None)
    name = code.co_filename if code is not None else ""
    if not name or os.path.exists(name) or name not in linecache.cache:
        return {}
    return {name: "".join(linecache.getlines(name))}
