"""Groups of ranks: which ranks talk to each other in one collective.

Groups are written as in `groups=[[0, 1], [2, 3]]`. A rank's position in its group is its member
number; results are ordered by it.
"""

import math
import operator
from collections.abc import Iterable, Sequence

from torch_xdist.collectives.errors import ArgumentError

Groups = tuple[tuple[int, ...], ...]
_SHOWN = 8


def checked(
    groups: Iterable[Iterable[int]] | None, world_size: int, *, of: str, partial: bool = False
) -> Groups | None:
    """The groups as tuples; None where all ranks form one group.

    Raises ArgumentError unless every rank of the world is in exactly one group; with `partial`,
    in at most one: ranks of none take no part.
    """
    if groups is None:
        return None
    found = _lists_of_ranks("groups", groups, of)
    if not found:
        return None
    if not all(found):
        raise ArgumentError(f"{of}: groups={listed(found)} has a group without ranks; leave it out")
    seen = [rank for group in found for rank in group]
    _refuse("is not a rank", [r for r in seen if not 0 <= r < world_size], found, world_size, of)
    twice = sorted({rank for rank in seen if seen.count(rank) > 1})
    _refuse("is there twice", twice, found, world_size, of)
    missing = [] if partial else sorted(set(range(world_size)) - set(seen))
    _refuse("is in no group", missing, found, world_size, of)
    return None if found == (tuple(range(world_size)),) else found


def equal_sized(groups: Groups | None, world_size: int, *, of: str) -> int:
    """The size all groups have. Raises ArgumentError where they differ."""
    if groups is None:
        return world_size
    sizes = {len(group) for group in groups}
    if len(sizes) > 1:
        raise ArgumentError(
            f"{of}: groups {listed(groups)} have sizes {sorted(sizes)}; its result has one shape, "
            "so all groups must have the same size; use groups of equal size"
        )
    return sizes.pop()


def group_of(rank: int, groups: Groups | None, world_size: int) -> tuple[int, ...]:
    """The group that `rank` belongs to."""
    if groups is None:
        return tuple(range(world_size))
    return next(group for group in groups if rank in group)


def shard_length(shape: Sequence[int], dim: int, parts: int, *, of: str) -> int:
    """The length of each of `parts` equal slices of dimension `dim`. Raises ArgumentError."""
    size = shape[dim]
    if size % parts:
        raise ArgumentError(
            f"{of} over {parts} ranks: dim {dim} of shape {tuple(shape)} has size {size}, which "
            f"{parts} does not divide; pad it by {math.ceil(size / parts) * parts - size}"
        )
    return size // parts


def checked_pairs(pairs: Iterable[Iterable[int]], world_size: int, *, of: str) -> Groups:
    """Pairs (source, target). Raises ArgumentError for bad ranks and for repeated ends."""
    found = _lists_of_ranks("pairs", pairs, of)
    for pair in found:
        if len(pair) != 2 or not all(0 <= rank < world_size for rank in pair):
            raise ArgumentError(
                f"{of}: {list(pair)} is no pair of ranks; a pair is [source, target] with ranks "
                f"from 0 to {world_size - 1}"
            )
    for end, name in enumerate(("source", "target")):
        ends = [pair[end] for pair in found]
        twice = sorted({rank for rank in ends if ends.count(rank) > 1})
        if twice:
            raise ArgumentError(
                f"{of}: rank {twice[0]} is {name} of several pairs in {listed(found)}; each rank "
                f"may be {name} once; use a broadcast, or several calls"
            )
    return found


def _lists_of_ranks(name: str, lists: Iterable[Iterable[int]], of: str) -> Groups:
    try:
        return tuple(tuple(operator.index(rank) for rank in ranks) for ranks in lists)
    except TypeError:
        raise ArgumentError(
            f"{of}: {name}={lists!r} is no list of lists of ranks; write it as [[0, 1], [2, 3]]"
        ) from None


def listed(groups: Groups) -> str:
    """The groups as the user writes them."""
    return str([list(group) for group in groups])


def shortened(groups: Groups) -> str:
    """The groups, or pairs, as messages show them: the first of them, where there are many."""
    if len(groups) <= _SHOWN:
        return listed(groups)
    return f"{listed(groups[:_SHOWN])[:-1]}, ...] ({len(groups)} in all)"


def ranks_text(ranks: Sequence[int]) -> str:
    """Ranks as a sentence names them: "rank 1", "ranks 0, 1 and 3"."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def _refuse(what: str, ranks: list[int], groups: Groups, world_size: int, of: str) -> None:
    if ranks:
        raise ArgumentError(
            f"{of}: rank {ranks[0]} {what} of groups={listed(groups)}; each rank from 0 to "
            f"{world_size - 1} must be in exactly one group; list all of them"
        )
