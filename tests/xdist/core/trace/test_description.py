"""What describes a value: the same for what computes alike, nothing for what nobody can know."""

import enum
import functools
import json
import subprocess
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from torch_xdist.core.composites import optimizers
from torch_xdist.core.trace.description import UndescribableError, described
from torch_xdist.core.trace.tensor_types import dense_type, tensor_type
from torch_xdist.ops import attention
from torch_xdist.ops.table import LOWERINGS


class Colour(enum.Enum):
    RED = 1


def of_ours(value):
    """A function of this package's, with what it encloses."""
    return optimizers.functools.partial(optimizers._update, value)


@pytest.mark.parametrize(
    "values",
    [
        (1, True, 1.0, "1", 1j, b"1", np.int64(1), None, (1,), [1]),
        (0.0, -0.0, float("nan"), float("inf")),
        ((1, (2, 3)), ((1, 2), 3), (1, 2, 3)),
        (torch.float32, torch.float64, "torch.float32", np.dtype("float32")),
        (np.arange(3), np.arange(3.0), jnp.arange(3), np.arange(4), np.array([0, 1, 3])),
        ({"a": 1}, {"a": 2}, {"b": 1}, {"a", 1}),
        (
            dense_type((2, 3), torch.float32),
            dense_type((3, 2), torch.float32),
            tensor_type((2, 3), torch.float32, (1, 2)),
            tensor_type((2, 3), torch.float32, (3, 1), 6),
        ),
        (of_ours(1), of_ours(2), optimizers._update),
        (LOWERINGS["aten.gelu.default"], LOWERINGS["aten.relu.default"], attention),
    ],
)
def test_different_values_are_described_differently(values):
    assert len({described(value) for value in values}) == len(values)


def test_the_order_of_a_dict_and_of_a_set_does_not_count():
    assert described({"a": 1, "b": 2}) == described({"b": 2, "a": 1})
    assert described({"x", "y", "z"}) == described({"z", "y", "x"})


@functools.wraps(optimizers._update)
def pretending(*args):
    return args


def circle():
    found = []
    found.append(found)
    return found


@pytest.mark.parametrize(
    ("value", "word"),
    [
        (lambda: 1, "a function of .*test_description.py"),
        (pretending, "a function of .*test_description.py"),
        (functools.partial(optimizers._update, print, circle), "test_description"),
        (Colour.RED, "something of .*test_description"),
        (torch.ones(3), "an object of torch.Tensor"),
        (torch.Generator(), "an object of torch._C.Generator"),
        (object(), "an object of builtins.object"),
        (np.zeros(2**18), r"an array float64\[262144\]"),
        (jax.random.key(0), r"an array key<fry>\[\]"),
        (circle(), "list in a circle"),
        (types.ModuleType("mine"), "something of mine"),
    ],
)
def test_what_nobody_can_know_has_no_description(value, word):
    with pytest.raises(UndescribableError, match=word):
        described(value)


def test_what_an_object_computed_of_itself_and_kept_does_not_count(monkeypatch):
    cls = type("Kept", (), {"size": functools.cached_property(lambda self: self.n * 2)})
    cls.__module__ = "torch_xdist.ops.attention"
    monkeypatch.setattr(attention, "Kept", cls, raising=False)
    one, other = cls(), cls()
    one.n = other.n = 3
    assert one.size == 6 and described(one) == described(other)
    other.n = 4
    assert described(one) != described(other)


def test_a_function_that_is_not_made_yet_has_none():
    code = optimizers._update.__code__.replace(co_freevars=("later",))
    with pytest.raises(UndescribableError, match="_update is not made yet"):
        described(types.FunctionType(code, {}, "f", None, (types.CellType(),)))


def test_another_process_says_the_same():
    code = """
        import functools, json, torch, torch_xla
        from torch_xdist.core.composites import optimizers
        from torch_xdist.core.trace.description import described
        from torch_xdist.ops.table import LOWERINGS
        values = {"partial": functools.partial(optimizers._update, {1, 2}), **LOWERINGS}
        found = {name: described(value) for name, value in values.items()}
    """
    code = "\n".join(line.strip() for line in code.splitlines())
    here = {}
    exec(code, here)
    command = [sys.executable, "-c", f"{code}\nprint(json.dumps(found))"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    there = json.loads(done.stdout.splitlines()[-1])
    # Other tests register operators here.
    assert there == {name: here["found"][name] for name in there}
    assert len(there) > 700
    names = "partial", "aten.gelu.default", "aten.convolution.default", "aten.sin.default"
    assert len({there[name] for name in names}) == 4


@pytest.mark.parametrize("name", LOWERINGS)
def test_each_operators_lowering_has_a_description(name):
    assert described(LOWERINGS[name])


def test_functions_that_enclose_each_other_are_described_by_where_they_begin():
    rule, other = LOWERINGS["aten.sin.default"], LOWERINGS["aten.cos.default"]
    assert described(rule) == described(rule)
    assert described(rule) != described(other)
