"""The numbers that a program is fed with: which are constants, and where the others come from.

- random rows: the seed and the counter of the device's stream, in the order they were drawn.
- a whole update of an optimizer: a formula of its group's hyperparameters and of its step counters.
- SGD, operator by operator: what is the negative learning rate in the update of a parameter.
- all others are the same at each call, or the call is none that can be replayed.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from torch_xdist.core.programs.interpreter import scalar_types
from torch_xdist.core.trace.random_stream import RandomStream
from torch_xdist.core.trace.trace import Tape
from torch_xdist.core.trace.watch import Update
from torch_xdist.replay.counters import Counters
from torch_xdist.replay.holders import is_of_torch
from torch_xdist.replay.reach import Reach, Unfit

_SEED_BITS = 32
# The row that ends an update of SGD, operator by operator: parameter + gradient * (-lr).
_LAST_OF_SGD = "aten.add.Tensor"


class Number(NamedTuple):
    """One number of a call: "constant", "seed", "counter", "update" or "rate", and which one."""

    origin: str
    what: Any
    line: str


class Feed(NamedTuple):
    """An update whose numbers are computed anew: from its group, and its members' counters."""

    group: dict[str, Any]
    update: Update


class Stream(NamedTuple):
    """A random stream as it was before a call."""

    seed: int
    lane: int
    counter: int
    settings: int

    @classmethod
    def of(cls, stream: RandomStream) -> "Stream":
        """What it is now."""
        return cls(stream.seed, stream.lane, stream.counter, stream.settings)


class Numbers:
    """The numbers of a recorded call.

    Attributes:
        floats, ints: what each is, in the order in which the program takes them.
        drawn: how many random numbers were drawn from the device's stream.
        feeds: of the updates.
        rates: groups of SGD's.
    """

    def __init__(
        self, tape: Tape, lines: Mapping[int, str], before: Stream, stream: RandomStream
    ) -> None:
        self.floats: list[Number] = []
        self.ints: list[Number] = []
        self.feeds: list[Feed] = []
        self.rates: list[dict[str, Any]] = []
        self.drawn = stream.counter - before.counter
        self._before = before
        if stream.settings != before.settings or stream.lane != before.lane:
            raise Unfit("random", "the function sets the seed of the device; set it outside")
        for slot in sorted(tape.scalars):
            row: Any = tape.entries[slot]
            given, types = tape.scalars[slot], scalar_types(row[0])
            line = lines.get(slot, "")
            if len(given) != len(types):
                raise Unfit("number", f"the recording of {row[0].name} was interrupted")
            for index, (number, kind) in enumerate(zip(given, types)):
                is_drawn = row[0].is_random and index >= len(given) - 2
                found = (
                    self._drawn(number, len(given) - index, line)
                    if is_drawn
                    else Number("constant", _exactly(number), line)
                )
                self._places.setdefault(slot, []).append((kind, len(self._of(kind))))
                self._of(kind).append(found)

    @property
    def _places(self) -> dict[int, list[tuple[type, int]]]:
        return self.__dict__.setdefault("places", {})

    def _of(self, kind: type) -> list[Number]:
        return self.floats if kind is float else self.ints

    def _drawn(self, number: Any, from_end: int, line: str) -> Number:
        before = self._before
        if from_end == 2 and number == before.seed ^ (before.lane << _SEED_BITS):
            return Number("seed", None, line)
        if from_end == 1 and before.counter < number <= before.counter + self.drawn:
            return Number("counter", number - before.counter, line)
        raise Unfit(
            "random",
            f"{line or 'the function'} draws from a generator of its own; draw from the device's"
            " (torch.manual_seed)",
        )

    def feed_updates(self, updates: Sequence[Update], reach: Reach) -> None:
        """Bind the numbers of whole updates to the groups that their parameters are in."""
        for update in updates:
            group = _group_of(update.params[0], reach)
            places = self._places.get(update.slot, [])
            if group is None or not places:
                continue
            now = update.numbers(group, update.counters[0].item() if update.counters else 0)
            given = [self.floats[place].what for _, place in places]
            if given != [*map(_exactly, now)]:
                continue
            for index, (_, place) in enumerate(places):
                line = self.floats[place].line
                self.floats[place] = Number("update", (len(self.feeds), index), line)
            self.feeds.append(Feed(group, update))

    def feed_rates(self, tape: Tape, leaves: Mapping[int, Any], reach: Reach) -> None:
        """Bind SGD's learning rates.

        Args:
            leaves: the parameter whose buffer a leaf is, by slot.
        """
        group_of = {id(p): group for group in _groups_of_sgd(reach) for p in group["params"]}
        for slot, places in self._places.items():
            row: Any = tape.entries[slot]
            if row[0].name != _LAST_OF_SGD or [kind for kind, _ in places] != [float]:
                continue
            group = group_of.get(id(leaves.get(row[1])))
            place = places[0][1]
            if group is not None and self.floats[place].what == _exactly(-group["lr"]):
                if all(group is not known for known in self.rates):
                    self.rates.append(group)
                line = self.floats[place].line
                self.floats[place] = Number("rate", id(group), line)

    def difference(self, other: "Numbers") -> Number | None:
        """The first number that is another one in another recording of the same program."""
        for mine, theirs in zip((*self.floats, *self.ints), (*other.floats, *other.ints)):
            if mine[:2] != theirs[:2]:
                return mine
        return None

    def is_alike(self, other: "Numbers") -> bool:
        """Whether the numbers of both come from the same places."""
        counts = [len(self.floats), len(self.ints), self.drawn, [*map(id, self.rates)]]
        of_other = [len(other.floats), len(other.ints), other.drawn, [*map(id, other.rates)]]
        return counts == of_other and [_of_feed(f) for f in self.feeds] == [
            _of_feed(f) for f in other.feeds
        ]


def _of_feed(feed: Feed) -> tuple[Any, ...]:
    counters = tuple(map(id, feed.update.counters))
    return id(feed.group), feed.update.slot, feed.update.numbers, counters


def _exactly(number: Any) -> Any:
    """A number by its bits: 0.0 is not -0.0, and no number is itself."""
    return number.hex() if number.__class__ is float else number


def exact_value(number: Number) -> Any:
    """The constant that a number is."""
    return float.fromhex(number.what) if number.what.__class__ is str else number.what


def _group_of(parameter: Any, reach: Reach) -> dict[str, Any] | None:
    for optimizer, _ in reach.optimizers.values():
        for group in optimizer.param_groups:
            if any(parameter is member for member in group["params"]):
                return group
    return None


def _groups_of_sgd(reach: Reach) -> Iterator[dict[str, Any]]:
    for optimizer, _ in reach.optimizers.values():
        if isinstance(optimizer, torch.optim.SGD) and is_of_torch(type(optimizer)):
            for group in optimizer.param_groups:
                # A rate of zero looks like other zeros.
                if group["lr"].__class__ is float and group["lr"]:
                    yield group


class Feeder:
    """Computes the numbers of a call, and counts what the call counts.

    Args:
        counters: every CPU tensor that a call raises by one.
    """

    def __init__(self, numbers: Numbers, counters: Sequence[torch.Tensor]) -> None:
        self._counters = Counters(counters)
        self._counts: list[float] = []
        self._drawn = numbers.drawn
        self._floats = _template(numbers.floats, np.float64)
        self._ints = _template(numbers.ints, np.int64)
        self._updates = [
            (feed, [_places(numbers.floats, "update", (index, i)) for i in range(_size(numbers))])
            for index, feed in enumerate(numbers.feeds)
        ]
        self._rates = [
            (group, _places(numbers.floats, "rate", id(group))) for group in numbers.rates
        ]
        self._seeds = _places(numbers.ints, "seed", None)
        drawn = [(i, n.what) for i, n in enumerate(numbers.ints) if n.origin == "counter"]
        self._drawn_at = [place for place, _ in drawn]
        self._offsets = np.array([offset for _, offset in drawn], np.int64)
        places = [[self._counters.place(c) for c in feed.update.counters] for feed in numbers.feeds]
        # All of an update's members at once, as most often.
        self._whole = [p if p != [*range(len(counters))] else None for p in places]

    def is_even(self) -> bool:
        """Whether the members of each update have stepped equally often; asked before `take`."""
        values = self._counters.values()
        self._counts = []
        for places in self._whole:
            found = values if places is None else [values[place] for place in places]
            if found and found.count(found[0]) != len(found):
                return False
            self._counts.append(found[0] + 1 if found else 0)
        return True

    def take(self, stream: RandomStream) -> tuple[np.ndarray, np.ndarray]:
        """The floats and the ints of the next call."""
        floats, ints = self._floats.copy(), self._ints
        self._counters.add(1)
        for (feed, places), count in zip(self._updates, self._counts):
            for place, number in zip(places, feed.update.numbers(feed.group, count)):
                floats[place] = number
        for group, at in self._rates:
            floats[at] = -group["lr"]
        if self._drawn:
            ints = ints.copy()
            ints[self._drawn_at] = self._offsets + stream.counter
            ints[self._seeds] = stream.seed ^ (stream.lane << _SEED_BITS)
            stream.counter += self._drawn
        return floats, ints

    def give_back(self, stream: RandomStream) -> None:
        """The call that took the last numbers did not run."""
        self._counters.add(-1)
        stream.counter -= self._drawn


def _size(numbers: Numbers) -> int:
    """How many numbers one update takes at most."""
    taken = [n.what[1] + 1 for n in numbers.floats if n.origin == "update"]
    return max(taken, default=0)


def _template(numbers: Sequence[Number], kind: Any) -> np.ndarray:
    values = [exact_value(n) if n.origin == "constant" else 0 for n in numbers]
    return np.array(values, kind)


def _places(numbers: Sequence[Number], origin: str, what: Any) -> list[int]:
    return [i for i, n in enumerate(numbers) if n.origin == origin and n.what == what]
