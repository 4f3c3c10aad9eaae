"""Calls, results and exceptions that travel between processes."""

import functools
import json
import linecache
import multiprocessing
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import types

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_xdist.launcher.facts import payload
from torch_xdist.launcher.facts.errors import PayloadError, RankFailedError

LOADER = """
import json, sys
from torch_xdist.launcher.facts import payload
fn, args = payload.loads(open(sys.argv[1], "rb").read())
print(json.dumps(fn(*args)))
"""


class Box:
    pass


def in_a_fresh_process(data, tmp_path):
    """Load a payload and make its call in another Python, away from this directory."""
    parcel = tmp_path / "payload"
    parcel.write_bytes(data)
    done = subprocess.run(
        [sys.executable, "-c", LOADER, str(parcel)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def run_script(text, tmp_path):
    """Run a script that writes a payload of its own functions."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(text))
    parcel = tmp_path / "from_script"
    subprocess.run([sys.executable, str(script), str(parcel)], check=True, timeout=60)
    return parcel.read_bytes()


def test_closures_and_lambdas_travel(tmp_path):
    offset = 5
    call = payload.dumps(lambda rank, scale: rank * scale + offset, (3, 10))
    assert in_a_fresh_process(call, tmp_path) == 35


def test_functions_classes_and_globals_of_main_travel(tmp_path):
    data = run_script(
        """
        import sys
        from torch_xdist.launcher.facts import payload

        FACTOR = 7

        class Config:
            def __init__(self, size):
                self.size = size

            def scaled(self):
                return self.size * FACTOR

        def train(rank, config):
            return rank + helper(config)

        def helper(config):
            return config.scaled()

        if __name__ == "__main__":
            open(sys.argv[1], "wb").write(payload.dumps(train, (1, Config(2))))
        """,
        tmp_path,
    )
    assert in_a_fresh_process(data, tmp_path) == 15


def test_modules_beside_the_callers_script_are_found(tmp_path):
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "model_of_mine.py").write_text("def size(rank):\n    return rank + 40\n")
    data = run_script(
        f"""
        import sys
        sys.path.insert(0, {str(tmp_path / "beside")!r})
        import model_of_mine
        from torch_xdist.launcher.facts import payload
        open(sys.argv[1], "wb").write(payload.dumps(model_of_mine.size, (2,)))
        """,
        tmp_path,
    )
    assert in_a_fresh_process(data, tmp_path) == 42


def test_functions_of_a_module_that_no_search_finds_go_by_value(tmp_path, monkeypatch):
    module = types.ModuleType("made_at_run_time")
    exec("def double(rank):\n    return 2 * rank\n", module.__dict__)
    monkeypatch.setitem(sys.modules, "made_at_run_time", module)
    assert in_a_fresh_process(payload.dumps(module.double, (4,)), tmp_path) == 8
    partial = functools.partial(module.double, 5)
    assert in_a_fresh_process(payload.dumps(partial), tmp_path) == 10


@pytest.mark.long
def test_modules_of_a_class_of_their_own_go_by_name(tmp_path):
    data = run_script(
        """
        import sys
        import torch
        from torch_xdist.launcher.facts import payload

        def train():
            return torch.ops.aten.relu(torch.tensor([-1, 2])).tolist()

        open(sys.argv[1], "wb").write(payload.dumps(train))
        """,
        tmp_path,
    )
    assert in_a_fresh_process(data, tmp_path) == [0, 2]


def test_sources_of_a_notebook_cell_travel_for_tracebacks(monkeypatch):
    text = "def cell(rank):\n    raise ValueError('from the cell')\n"
    name = "/nowhere/ipykernel_1/1.py"
    monkeypatch.setitem(linecache.cache, name, (len(text), None, text.splitlines(True), name))
    space = {"__name__": "__main__"}
    exec(compile(text, name, "exec"), space)
    data = payload.dumps(space["cell"], (0,))
    del linecache.cache[name]
    fn, args = payload.loads(data)
    with pytest.raises(ValueError, match="from the cell") as caught:
        fn(*args)
    assert "raise ValueError('from the cell')" in payload.traceback_text(caught.value)
    linecache.cache.pop(name, None)


def test_managers_of_multiprocessing_accept_their_ranks(tmp_path):
    with multiprocessing.get_context("spawn").Manager() as manager:
        shared = manager.list()

        def fill(rank):
            shared.append(rank)
            return list(shared)

        assert in_a_fresh_process(payload.dumps(fill, (6,)), tmp_path) == [6]


def test_the_import_path_of_the_caller_is_set(monkeypatch):
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    data = payload.dumps(os.getcwd)
    before = os.getcwd()
    monkeypatch.setattr(sys, "path", sys.path[1:])
    payload.loads(data)
    assert sys.path[0] == before


def holder(value):
    box = Box()
    box.inner = Box()
    box.inner._lock = value
    return box


LOCK = threading.Lock()


def with_closure():
    model = holder(LOCK)
    return lambda rank: model


def with_default(rank, lock=LOCK):
    return lock


def with_keyword_default(rank, *, lock=LOCK):
    return lock


@pytest.mark.parametrize(
    ("fn", "args", "path"),
    [
        (with_closure(), (), "fn.__closure__['model'].inner._lock"),
        (functools.partial(print, LOCK), (), "fn.args[0]"),
        (functools.partial(print, end=LOCK), (), "fn.keywords['end']"),
        (print, (1, {"a": [2, LOCK]}), "args[1]['a'][1]"),
        (print, (holder({"x": (LOCK,)}),), "args[0].inner._lock['x'][0]"),
        (print, (types.SimpleNamespace(lock=LOCK),), "args[0].lock"),
    ],
)
def test_what_cannot_be_pickled_is_named_by_its_path(fn, args, path):
    with pytest.raises(PayloadError) as caught:
        payload.dumps(fn, args)
    assert str(caught.value).startswith(
        f"spawn: {path} (_thread.lock) cannot be pickled: cannot pickle '_thread.lock' object; "
    )


def test_globals_and_defaults_of_a_function_of_main_are_named(monkeypatch):
    space = {"__name__": "__main__", "lock": LOCK}
    exec(
        "def by_global(rank):\n    return (lambda: lock)()\n"
        "def by_default(rank, key=lock):\n    return key\n"
        "def by_keyword(rank, *, key=lock):\n    return key\n",
        space,
    )
    for name, path in (
        ("by_global", "fn.__globals__['lock']"),
        ("by_default", "fn.__defaults__[0]"),
        ("by_keyword", "fn.__kwdefaults__['key']"),
    ):
        with pytest.raises(PayloadError) as caught:
            payload.dumps(space[name])
        assert f"spawn: {path} (_thread.lock)" in str(caught.value)


def test_children_of_a_module_are_named_as_attributes():
    model = Box()
    model._modules = {"layer": holder(LOCK)}
    with pytest.raises(PayloadError, match=r"args\[0\]\.layer\.inner\._lock"):
        payload.dumps(print, (model,))


def test_an_object_that_refuses_by_itself_is_named_with_its_reason():
    class Stubborn:
        def __reduce__(self):
            raise RuntimeError("not me")

    with pytest.raises(PayloadError, match=r"args\[0\] \(.*Stubborn\) cannot be pickled: not me"):
        payload.dumps(print, (Stubborn(),))


def test_a_result_is_named_by_its_path_too():
    with pytest.raises(PayloadError, match=r"result of a rank: result\['lock'\] \(_thread.lock\)"):
        payload.dumps_value({"lock": LOCK})


def test_a_cycle_is_no_endless_search():
    loop = {"lock": LOCK}
    loop["self"] = loop
    with pytest.raises(PayloadError, match=r"args\[0\]\['lock'\]"):
        payload.dumps(print, (loop,))


def test_results_come_back():
    value = {"loss": [1.0, 2.0], "box": Box}
    assert payload.loads_value(payload.dumps_value(value)) == value


PLAIN = st.recursive(
    st.none() | st.integers() | st.text(max_size=5), lambda part: st.lists(part) | st.tuples(part)
)


@settings(max_examples=40, deadline=None)
@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=5), lambda x: st.lists(x) | st.tuples(x, x)
    )
)
def test_any_plain_arguments_come_back(value):
    fn, args = payload.loads(payload.dumps(print, (value,)))
    assert fn is print and args == (value,)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60))
def test_bytes_that_are_no_payload_are_one_clear_error(data):
    data = b"\x80\x04\xff" + data
    with pytest.raises(PayloadError, match="the result cannot be unpickled here: "):
        payload.loads_value(data)
    error = payload.loads_exception(data, "Traceback\nValueError: x", rank=1)
    assert isinstance(error, RankFailedError)


def test_a_call_of_a_module_that_is_not_there_says_so(tmp_path, monkeypatch):
    (tmp_path / "gone_soon.py").write_text("def f():\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import gone_soon

    data = payload.dumps(gone_soon.f)
    os.remove(tmp_path / "gone_soon.py")
    monkeypatch.delitem(sys.modules, "gone_soon")
    sys.path_importer_cache.clear()
    with pytest.raises(PayloadError, match="the function and its arguments cannot be unpickled he"):
        payload.loads(data)


def test_an_exception_comes_back_with_its_traceback_as_the_cause():
    data = payload.dumps_exception(KeyError("step"))
    error = payload.loads_exception(data, "Traceback\n  the line\nKeyError: 'step'", rank=2)
    assert isinstance(error, KeyError) and error.args == ("step",)
    assert "the line" in str(error.__cause__)


class TwoArguments(Exception):
    def __init__(self, first, second):
        super().__init__("message only")


@pytest.mark.parametrize("bad", [TwoArguments(1, 2), ValueError(LOCK)])
def test_an_exception_that_would_not_come_back_is_text(bad):
    assert payload.dumps_exception(bad) == b""
    error = payload.loads_exception(b"", "Traceback\nMine: message only", rank=2, exit_code=3)
    assert isinstance(error, RankFailedError)
    assert (error.rank, error.exit_code) == (2, 3)
    assert str(error).startswith("rank 2 failed: Mine: message only\n\nTraceback")


def test_bytes_that_are_no_exception_are_text_too():
    error = payload.loads_exception(pickle.dumps({"not": "one"}), "", rank=0)
    assert str(error).startswith("rank 0 failed: no traceback")


def test_the_launchers_own_frames_are_left_out_of_a_traceback():
    try:
        payload.loads_value(b"")
    except PayloadError as error:
        ours = payload.traceback_text(error)
    assert ours.count("payload.py") >= 1  # the last frame stays, it raised

    def users(rank):
        raise ValueError(f"rank {rank}")

    code = compile("def run(fn):\n    fn(0)\n", payload.__file__, "exec")
    space = {}
    exec(code, space)
    try:
        space["run"](users)
    except ValueError as error:
        error.__traceback__ = error.__traceback__.tb_next
        text = payload.traceback_text(error)
    assert "in run" not in text
    assert "in users" in text
