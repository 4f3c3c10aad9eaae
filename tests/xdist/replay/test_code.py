"""What code names, without running it."""

import torch

from torch_xdist.replay import code


def outer(thing):
    def inner():
        return GIVEN.shape + thing.size

    return [inner(), len(thing.first)]


GIVEN = torch.ones(1)


class Base:
    @staticmethod
    def plain():
        return 1

    @property
    def size(self):
        return 2


class Derived(Base):
    def plain(self):
        return 3


def test_globals_and_attributes_of_a_function_and_of_those_inside():
    names = code.names_of(outer.__code__)
    assert "GIVEN" in names.globals and "thing" not in names.globals
    assert {"shape", "size", "first"} <= names.attributes


def test_functions_of_a_class_are_those_it_calls_by_these_names():
    found = code.functions_of(Derived, {"plain", "size", "absent"})
    assert [f.__qualname__ for f in found] == ["Derived.plain", "Base.size"]
    assert [f.__qualname__ for f in code.functions_of(Base, {"plain"})] == ["Base.plain"]


def test_functions_of_torch_are_not_the_users():
    assert code.is_users(outer)
    assert not code.is_users(torch.nn.Linear.forward) and not code.is_users(len)
