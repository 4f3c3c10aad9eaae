"""Which calls of one signature still hold for another."""

import inspect

import pytest

from torch_xdist.surface.signatures import UNSAID, differences, of, parse


def test_every_kind_of_parameter_is_read():
    text = "(a, /, b, c=(1, 2), *rest, d, e='x', f=..., **others)"
    read = parse(text)
    assert str(read) == "(a, /, b, c=(1, 2), *rest, d, e='x', f=Ellipsis, **others)"
    assert read.parameters["f"].default is UNSAID


@pytest.mark.parametrize(
    ("theirs", "ours", "found"),
    [
        ("(x, dim=0)", "(x, dim=0)", []),
        ("(x, dim=0)", "(x, dim=0, more=1, *, still_more=2)", []),
        ("(x, dim=0)", "(*args, **kwargs)", []),
        ("(x, dim=...)", "(x, dim=3)", []),
        ("(x, dims=[])", "(x, dims=())", []),
        ("(x, size=100)", "(x, size=None)", []),
        ("(x, *, dim=0)", "(x, other=1, dim=0)", []),
        ("(x, *, dim=0)", "(x, **kwargs)", []),
        ("(x, dim=0)", "(*places, x, dim=0)", []),
        ("(x, dim=0)", "(x)", ["has no dim"]),
        ("(x, dim=0)", "(x, **kwargs)", ["has no dim"]),
        ("(x, dim=0)", "(dim, x)", ["x is not argument 1", "dim is not argument 2", "needs dim"]),
        ("(x, dim=0)", "(x, *, dim=0)", ["dim is not argument 2"]),
        ("(x, dim=0)", "(x, dim)", ["needs dim"]),
        ("(x, dim=...)", "(x, dim)", ["needs dim"]),
        ("(x, dim=0)", "(x, dim=1)", ["dim is 1, not 0"]),
        ("(x)", "(x, more)", ["needs more"]),
        ("(*xs, **more)", "(xs)", ["takes no *xs", "takes no **more", "needs xs"]),
    ],
)
def test_what_a_caller_would_meet_is_told(theirs, ours, found):
    assert differences(parse(theirs), parse(ours)) == found


def test_a_function_without_a_signature_has_none():
    assert of(dict.get) == inspect.signature(dict.get)
    assert of(type) is None
    assert of(3) is None
