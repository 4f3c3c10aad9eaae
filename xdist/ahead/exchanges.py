"""What the collectives of a compiled program move, read from its HLO. No torch, no JAX."""

import re
from collections import Counter
from typing import Any

_LINE = re.compile(
    r"= (?P<type>[^=]*?) (?P<kind>all-reduce|all-gather|reduce-scatter|all-to-all"
    r"|collective-permute|collective-broadcast|ragged-all-to-all)(?P<start>-start)?\((?P<rest>.*)"
)
_ARRAY = re.compile(r"\b(pred|bf16|[sufc]\d+)(?:e\w+)?\[([\d,]*)\]")
_LISTED = re.compile(r"replica_groups=\{\{([\d,]*)\}")
_STRIDED = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_ALONG = re.compile(r"replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}")
_AXIS = re.compile(r"'(\w+)'(?:=(\d+))?")
_PAIRS = re.compile(r"source_target_pairs=\{\{(\d+),(\d+)\}")


def of_hlo(hlo: str) -> list[dict[str, Any]]:
    """The collectives that a program has, alike ones together.

    Returns dicts of "kind", "async" (whether it is a pair with other work between), "group" (the
    first group's places among the program's devices), "bytes" (of the whole array, which an
    all-gather gives and a reduce-scatter takes) and "count".
    """
    found: Counter[tuple[Any, ...]] = Counter()
    for line in hlo.splitlines():
        match = _LINE.search(line)
        if match is None:
            continue
        group, kind = group_of(match["rest"]), match["kind"]
        arrays = [*map(_bytes, _ARRAY.findall(match["type"]))]
        size = _whole(kind, arrays, bool(match["start"]), len(group))
        found[kind, bool(match["start"]), group, size] += 1
    return [
        {"kind": kind, "async": paired, "group": [*group], "bytes": size, "count": count}
        for (kind, paired, group, size), count in found.items()
    ]


def _whole(kind: str, arrays: list[int], is_start: bool, ranks: int) -> int:
    # The result of a start has its operands in it.
    if is_start:
        return max(arrays, default=0)
    return sum(arrays) * (ranks if kind == "reduce-scatter" else 1)


def group_of(text: str) -> tuple[int, ...]:
    """The first group of a collective, from its attributes in HLO."""
    listed, strided, pair = _LISTED.search(text), _STRIDED.search(text), _PAIRS.search(text)
    along = _ALONG.search(text)
    if along is not None:
        return _first_along(along[1], along[2])
    if listed is not None:
        return tuple(int(place) for place in listed[1].split(",") if place)
    if strided is not None:
        groups, sizes, turned = (_numbers(part or "") for part in strided.groups())
        return _first_strided(groups, sizes, turned)
    return (int(pair[1]), int(pair[2])) if pair is not None else ()


def _first_along(mesh: str, group: str) -> tuple[int, ...]:
    """The first group along some axes of a mesh, whose places are numbered in row-major order."""
    sizes = {name: int(size) for name, size in _AXIS.findall(mesh)}
    named = [name for name, _ in _AXIS.findall(group)]
    if ":" in group or not sizes.keys() >= {*named}:
        return ()
    places, stride = [0], 1
    strides = {}
    for name in reversed(sizes):
        strides[name], stride = stride, stride * sizes[name]
    for name in named:
        places = [p + i * strides[name] for p in places for i in range(sizes[name])]
    return tuple(places)


def _first_strided(groups: list[int], sizes: list[int], turned: list[int]) -> tuple[int, ...]:
    """The first row of iota(sizes), transposed, and then cut into `groups`."""
    order = turned or [*range(len(sizes))]
    strides = [1] * len(sizes)
    for place in reversed(range(len(sizes) - 1)):
        strides[place] = strides[place + 1] * sizes[place + 1]
    found = []
    for number in range(groups[-1]):
        rest, place = number, 0
        for axis in reversed(order):
            rest, digit = divmod(rest, sizes[axis])
            place += digit * strides[axis]
        found.append(place)
    return tuple(found)


def _bytes(array: tuple[str, str]) -> int:
    kind, dims = array
    size = 1
    for dim in _numbers(dims):
        size *= dim
    bits = 8 if kind == "pred" else int(re.sub(r"\D", "", kind))
    return size * bits // 8


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]
