"""Name by name, beside modules made for it."""

import sys
import types

import pytest

from torch_xdist.surface.compare import ABSENT, DIFFERS, THERE, Row, compare, names


class Here:
    slot: int

    def __init__(self, x):
        """One parameter."""

    @staticmethod
    def make(x):
        """A static method."""

    @property
    def size(self):
        return 0


@pytest.fixture
def module(monkeypatch):
    made = types.ModuleType("module_of_this_test")
    made.add, made.LIMIT, made.Here, made.thing = (lambda x, y=2: x + y), 3, Here, object()
    monkeypatch.setitem(sys.modules, made.__name__, made)
    return made.__name__


@pytest.mark.parametrize(
    ("name", "kind", "status", "how"),
    [
        ("add", "(x, y=2)", THERE, ""),
        ("add", "(x, z=2)", DIFFERS, "has no z"),
        ("LIMIT", "= 3", THERE, ""),
        ("LIMIT", "= 4", DIFFERS, "is 3, not 4"),
        ("LIMIT", "(x)", DIFFERS, "is not callable"),
        ("thing", "object", THERE, ""),
        ("gone", "object", ABSENT, "module_of_this_test has no gone"),
        ("Here", {"__init__": "(self, x)", "make": "(x)", "size": "property"}, THERE, ""),
        ("Here", {"slot": "member_descriptor"}, THERE, ""),
        ("Here", {"make": "(x, y)", "gone": "(self)"}, DIFFERS, "make: has no y; has no gone"),
        ("add", {"__init__": "(self)"}, DIFFERS, "is a function, not a class"),
    ],
)
def test_a_name_is_there_or_differs_or_is_absent(module, name, kind, status, how):
    assert list(compare({module: {name: kind}})) == [Row(module, name, status, how)]


def test_names_of_a_module_that_is_not_there_are_absent():
    (row,) = compare({"torch_xla.no_such_module": {"thing": "object"}})
    assert row.status == ABSENT
    assert row.how == "No module named 'torch_xla.no_such_module'"


def test_the_list_holds_the_names_scripts_call():
    listed = names()
    assert listed["torch_xla.core.xla_model"]["mark_step"] == "(wait=False, reset_scope=True)"
    assert listed["torch_xla"]["device"] == "(index=None)"
    assert sum(len(kinds) for kinds in listed.values()) == 846
