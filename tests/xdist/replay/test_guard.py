"""Guards as generated functions: alone and in bulk a condition means the same."""

import pytest

from torch_xdist.replay.guard import Bulk, Check, Guard, Names, equals, told


def guard_of(*checks: Check) -> Guard:
    return Guard(checks, Names())


@pytest.mark.parametrize(
    ("was", "now"),
    [(1, True), (1, 1.0), (0.0, -0.0), ("a", "b"), (None, 0), (False, 0), (b"x", "x"), (2, 3)],
)
def test_plain_values_are_equal_by_type_value_and_sign(was, now):
    space = {"x": was}
    condition = equals("x", was)
    assert eval(condition, space)
    assert not eval(condition, {"x": now})


def test_no_number_is_equal_to_itself_here():
    assert eval(equals("x", float("nan")), {"x": float("nan")})
    assert not eval(equals("x", float("inf")), {"x": float("-inf")})


@pytest.mark.parametrize(
    ("kind", "key", "value", "change"),
    [
        ("item", "a", None, lambda d: d.update(a=0)),
        ("plain", "b", 1, lambda d: d.update(b=True)),
        ("plain", "b", 1, lambda d: d.pop("b")),
        ("length", None, 2, lambda d: d.update(c=1)),
        ("members", None, {"a": None, "b": 1}, lambda d: d.update(b=2)),
        ("members", None, {"a": None, "b": 1}, lambda d: d.update(x=d.pop("b"))),
    ],
)
def test_conditions_in_bulk_break_alone(kind, key, value, change):
    state = {"a": None, "b": 1}
    others = [{"a": None, "b": 1} for _ in range(3)]
    checks = [
        Check(f"True or {i}", "0", "0", f"place {i}", "value", Bulk(kind, one, key, value))
        for i, one in enumerate([state, *others])
    ]
    guard = guard_of(*checks)
    assert guard.holds((), {})
    change(state)
    assert not guard.holds((), {})


def test_hooks_are_empty_and_attributes_the_same_in_bulk():
    class Thing:
        mark = None

    hooks, thing = {}, Thing()
    guard = guard_of(
        Check("True", "0", "0", "hooks", "hook", Bulk("empty", hooks)),
        Check("1", "0", "0", "mark", "value", Bulk("attribute", thing, "mark", None)),
        Check("2", "0", "0", "covered", "value", Bulk("covered", None)),
    )
    assert guard.holds((), {})
    thing.mark = 1
    assert not guard.holds((), {})
    thing.mark = None
    hooks["x"] = 1
    assert not guard.holds((), {})


def test_the_first_broken_condition_is_named_with_what_is_there():
    names = Names()
    state = names.of({"x": 1})
    checks = [
        Check("len(a) == 1", "len(a)", "1", "the arguments", "value"),
        Check(f"{state}['x'] == 1", f"{state}['x']", "1", "the state", "value"),
    ]
    guard = Guard(checks, names)
    assert guard.broken((0,), {}) is None
    assert guard.broken((), {})[0].where == "the arguments"
    names.objects[state].clear()
    check, now = guard.broken((0,), {})
    assert (check.where, now) == ("the state", "not there")
    assert not guard.holds((0,), {})


def test_values_are_told_in_a_few_words():
    assert told("x" * 200) == "'" + "x" * 76 + "..."
    assert told([1]) == "a list" and told(2.5) == "2.5"
