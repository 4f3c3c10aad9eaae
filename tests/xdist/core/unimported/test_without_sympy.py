"""sympy is imported by who has symbolic shapes, and torch is then what it was."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from torch_xdist.core.unimported import no_symbols, without_sympy
from torch_xdist.releases import patches

ROOT = Path(__file__).resolve().parents[4]
SLOW = "sympy", no_symbols.REAL
TRAINED = """
    import sys, torch
    sys.path.insert(0, "tests")
    import models
    from torch import nn
    from torch._prims_common import elementwise_dtypes

    before = {f: f.__code__ for f in (elementwise_dtypes, torch._check_with)}
    import torch_xla
    from torch_xdist.core.unimported import no_symbols

    def train(device):
        torch.manual_seed(0)
        words = torch.randint(32, (2, 8)).to(device)
        images, classes = torch.randn(2, 1, 28, 28).to(device), torch.tensor([1, 2]).to(device)
        losses = []
        for model, inputs, target, kind in (
            (models.MnistNet(), images, classes, torch.optim.Adam),
            (models.MnistNet(), images, classes, torch.optim.SGD),
            (models.Gpt(vocabulary=32, length=8, d=16, heads=2, layers=1), words, words,
             torch.optim.AdamW),
            (models.Recurrent(nn.LSTM, 32, 8), words, words, torch.optim.AdamW),
        ):
            model.to(device)
            optimizer = kind(model.parameters(), lr=0.1)
            for _ in range(2):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(inputs).flatten(0, -2), target.flatten())
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
            losses.append(loss.item())
        return losses

    slow = "sympy", no_symbols.REAL
    found = train("xla")
    print([name for name in slow if name in sys.modules])
"""


def ran(code):
    """What a process prints that trains, and then runs this."""
    command = [sys.executable, "-c", textwrap.dedent(TRAINED) + textwrap.dedent(code)]
    # What is found on disk is not inferred anew.
    env = {**os.environ, "XLA_PERSISTENT_CACHE_PATH": ""}
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, cwd=ROOT, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.long
def test_a_training_imports_no_sympy_and_torch_is_as_it_was_once_somebody_does():
    found = ran("""
        assert all(f.__code__ is not code for f, code in before.items())
        from torch.export import Dim, export
        class Twice(nn.Module):
            def forward(self, x):
                return torch.cat([x.t(), x.t()]).sum(1) * x.size(0)
        size = Dim("size", min=2, max=64)
        program = export(Twice(), (torch.ones(4, 3),), dynamic_shapes=({0: size},))
        print(program.module()(torch.ones(7, 3)).tolist())
        print([name for name in slow if name in sys.modules])
        assert all(f.__code__ is code for f, code in before.items())
        print(torch.compile(lambda x: x * x.size(0), backend="eager", dynamic=True)(torch.ones(3)))
        assert train("xla") == found
    """)
    assert found == ["[]", str([49.0] * 6), str([*SLOW]), "tensor([3., 3., 3.])"]


def test_who_has_sympy_already_keeps_torch_as_it_is():
    code = """
        import torch, sympy
        code = torch._check_with.__code__
        import torch_xla
        assert torch._check_with.__code__ is code
        from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as Kind, elementwise_dtypes
        print(elementwise_dtypes(sympy.Integer(3), type_promotion_kind=Kind.DEFAULT)[1])
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, cwd=ROOT)
    assert (done.stdout, done.returncode) == ("torch.int64\n", 0), done.stderr


@pytest.fixture
def renamed(monkeypatch):
    """Functions of torch as they are without sympy, with their own code; undone afterwards."""
    patches.undo(without_sympy._ASKING)
    monkeypatch.setattr(patches, "_marked", [])
    monkeypatch.setattr(patches, "_made", [])
    before = {function: function.__code__ for function in without_sympy._functions()}
    patches.mark(without_sympy._ASKING, without_sympy._without())
    yield {f: code for f, code in before.items() if f.__code__ is not code}
    patches.undo(without_sympy._ASKING)
    assert all(function.__code__ is code for function, code in before.items())


def test_the_functions_that_ask_are_found(renamed):
    names = {function.__qualname__ for function in renamed}
    assert {"_check_with", "elementwise_dtypes", "is_contiguous", "_broadcast_shapes"} <= names
    # Of functions that are wrapped; releases before 2.13 ask nothing in meta_conv.
    wrapped = {"meta_conv"} if torch.__version__ >= "2.13" else {"meta_baddbmm"}
    assert {"_make_grads", *wrapped} <= names and len(names) > 30


KINDS = torch._prims_common.ELEMENTWISE_TYPE_PROMOTION_KIND
OPERANDS = [(1,), (True, 2.5), (1, 1j), (torch.ones(2), 3), (torch.ones(2, dtype=torch.int8), 1.0)]


def test_dtypes_are_the_same_and_so_are_errors(renamed):
    def dtypes():
        return [
            torch._prims_common.elementwise_dtypes(*operands, type_promotion_kind=kind)
            for operands in OPERANDS
            for kind in KINDS
        ]

    with pytest.raises(ValueError, match="Unexpected type <class 'str'>"):
        torch._prims_common.elementwise_dtypes("a", type_promotion_kind=KINDS.DEFAULT)
    with pytest.raises(RuntimeError, match="no match"):
        torch._check(False, lambda: "no match")
    with pytest.raises(RuntimeError, match="Mismatch in shape"):
        (torch.ones(2, requires_grad=True) * 2).backward(torch.ones(3))
    ours = dtypes()
    patches.undo(without_sympy._ASKING)
    assert ours == dtypes()


BOOLS = [(value,) for value in (True, False)]
NUMBERS = [(3,), (0,)]
SHAPES = [
    ((2, 3), [2, 3]),
    ((2, 3), (2, 4)),
    ((2,), (2, 1)),
    ((), ()),
    (4, 4),
    (4, 5),
    (((1, 2), 3), [(1, 2), 3]),
]
CASES = {
    "guard_or_false": BOOLS,
    "guard_or_true": BOOLS,
    "statically_known_true": BOOLS,
    "expect_true": BOOLS,
    "guard_int": NUMBERS,
    "guarding_hint_or_throw": [*NUMBERS, *BOOLS],
    "size_hint": NUMBERS,
    "is_nested_int": [*NUMBERS, (1.5,)],
    "has_hint": [*NUMBERS, *BOOLS],
    "has_guarding_hint": [*NUMBERS, *BOOLS, (1.5,)],
    "free_unbacked_symbols": [(torch.ones(2, 3).t(),), (3,), (torch.ones(2).to_sparse(),)],
    "sym_and": [(True,), (True, False), (True, True, True)],
    "sym_or": [(False,), (False, True), (False, False, False)],
    "sym_eq": SHAPES,
}


@pytest.mark.parametrize("name", CASES)
def test_numbers_are_answered_as_by_torch(name):
    import torch.fx.experimental.symbolic_shapes as real

    if not hasattr(real, name):
        pytest.skip(f"this torch has no {name}")
    for values in CASES[name]:
        ours, theirs = getattr(no_symbols, name)(*values), getattr(real, name)(*values)
        assert ours == theirs or not (ours or theirs), values


def test_what_is_symbolic_is_answered_by_torch():
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv, StatelessSymbolicContext

    is_new = hasattr(torch.fx.experimental.symbolic_shapes, "has_guarding_hint")
    asked_for_hint = no_symbols.has_guarding_hint if is_new else no_symbols.has_hint
    context = StatelessSymbolicContext([torch.fx.experimental.symbolic_shapes.DimDynamic.DYNAMIC])
    mode = FakeTensorMode(shape_env=ShapeEnv())
    size = mode.from_tensor(torch.ones(5), symbolic_context=context).size(0)
    assert isinstance(size, torch.SymInt)
    assert no_symbols.guard_or_false(size == 5) is True
    assert no_symbols.expect_true(size > 4) is True
    assert no_symbols.guard_int(size) == 5 and type(no_symbols.guard_int(size)) is int
    assert asked_for_hint(size) and not no_symbols.is_nested_int(size)
    assert no_symbols.free_unbacked_symbols(size) == set()
    assert isinstance(no_symbols.sym_eq((size, 2), (6, 2)), torch.SymBool)
    assert no_symbols.sym_and(size > 1, size < 9) and no_symbols.sym_or(size > 9, size == 5)


def test_other_names_are_those_of_torch_and_wrong_values_are_refused_as_by_torch():
    import torch.fx.experimental.symbolic_shapes as real

    assert no_symbols.ShapeEnv is real.ShapeEnv
    for name in ("guard_or_false", "expect_true"):
        with pytest.raises(AssertionError) as theirs:
            getattr(real, name)(1)
        with pytest.raises(AssertionError) as ours:
            getattr(no_symbols, name)(1)
        assert str(ours.value) == str(theirs.value)
    with pytest.raises(AttributeError, match="__nothing__"):
        no_symbols.__nothing__  # noqa: B018
    with pytest.raises(AttributeError, match="no_such_thing"):
        no_symbols.no_such_thing  # noqa: B018
