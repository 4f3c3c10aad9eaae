"""What the collectives of a compiled program move, read from its HLO. No torch, no JAX.

A scheduled program lists instructions in the order in which they begin. An asynchronous collective
is a pair, -start and -done, and what stands between them runs meanwhile. On TPUs it may also be a
chain: a fusion that begins it, fusions that compute and have a step of it inside (named
"async_collective_fusion"), and one that ends it. The collective is then written in each of them.
"""

import re
from collections import Counter
from typing import Any, NamedTuple

# In a long type stands a comment here and there, such as /*index=5*/.
_LINE = re.compile(
    r"= (?P<type>(?:/\*[^*]*\*/|[^=])*?) (?P<kind>all-reduce|all-gather|reduce-scatter|all-to-all"
    r"|collective-permute|collective-broadcast|ragged-all-to-all)(?P<start>-start)?\((?P<rest>.*)"
)
_NAME = re.compile(r"\s*(?:ROOT )?%?([\w.-]+) = ")
_DONE = re.compile(r"-done\(.*?%([\w.-]+)\)")
_COMPUTES = re.compile(r" (?:fusion|convolution|dot|custom-call)\(")
_COMPUTATION = re.compile(r"(?:ENTRY )?%?([\w.-]+) \(.*\{$")
# What TPUs' compiler says of an instruction of a chain.
_CHAIN = re.compile(r'chain_id="(\d+)"')
_LINK = "async_collective_fusion"
_ARRAY = re.compile(r"\b(pred|bf16|[sufc]\d+)(?:e\w+)?\[([\d,]*)\]")
_LISTED = re.compile(r"replica_groups=\{\{([\d,]*)\}")
_STRIDED = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_ALONG = re.compile(r"replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}")
_AXIS = re.compile(r"'(\w+)'(?:=(\d+))?")
_PAIRS = re.compile(r"source_target_pairs=\{\{(\d+),(\d+)\}")


def of_hlo(hlo: str) -> list[dict[str, Any]]:
    """The collectives that a program has, alike ones together.

    Returns dicts of "kind", "async" (whether other work may run meanwhile), "fusions" (how many
    compute between its beginning and its end), "group" (the first group's places among the
    program's devices), "bytes" (of the whole array, which an all-gather gives and a reduce-scatter
    takes) and "count".
    """
    found: Counter[_Exchange] = Counter()
    chains: dict[str, tuple[_Exchange, int]] = {}
    pairs: dict[str, tuple[_Exchange, int]] = {}
    inside, computed = "", 0
    for line in hlo.splitlines():
        if (computation := _COMPUTATION.match(line)) is not None:
            inside = computation[1]
        computed += _COMPUTES.search(line) is not None
        if (done := _DONE.search(line)) is not None and done[1] in pairs:
            one, before = pairs.pop(done[1])
            found[one._replace(fusions=computed - before)] += 1
        if (match := _LINE.search(line)) is None:
            continue
        one = _exchange(match)
        if (chain := _CHAIN.search(line)) is not None:
            links = chains.get(chain[1], (one, 0))[1] + inside.startswith(_LINK)
            chains[chain[1]] = one._replace(is_async=True), links
        elif one.is_async and (name := _NAME.match(line)) is not None:
            pairs[name[1]] = one, computed
        else:
            found[one] += 1
    found.update(one for one, _ in pairs.values())
    found.update(one._replace(fusions=links) for one, links in chains.values())
    return [_told(one, count) for one, count in found.items()]


class _Exchange(NamedTuple):
    kind: str
    is_async: bool
    group: tuple[int, ...]
    size: int
    fusions: int = 0


def _exchange(match: re.Match[str]) -> _Exchange:
    group, kind, is_start = group_of(match["rest"]), match["kind"], bool(match["start"])
    arrays = [*map(_bytes, _ARRAY.findall(match["type"]))]
    return _Exchange(kind, is_start, group, _whole(kind, arrays, is_start, len(group)))


def _told(one: _Exchange, count: int) -> dict[str, Any]:
    return {
        "kind": one.kind,
        "async": one.is_async,
        "fusions": one.fusions,
        "group": [*one.group],
        "bytes": one.size,
        "count": count,
    }


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
