"""Which of a job's hosts an attempt runs on: places, spares, and hosts that are out. Pure.

A job has as many places as it has hosts that are no spares. A place keeps its number of ranks and
its turn in the numbering, whichever host stands there. A host that was lost, or could not take
part, is out; how another one comes in its place, and when it is tried again:

- A host that has never been out comes before any other, so spares in the order of their names.
- One that is out is left out of the next attempt. From the one after that it may be tried again.
- Where that does not fill all places (or, where fewer are enough, so many), the hosts of the last
  attempt are tried once more: they may be back.
- Within one attempt no host is tried twice. So the starts of an attempt are as many as hosts.

Nodes that come by themselves say themselves that they are there; these are taken at once.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from torch_xdist.launcher.facts.host_list import Host

LOST, UNFIT = "was lost", "could not take part"
_NEVER_OUT, _LONG_OUT, _JUST_OUT = range(3)


@dataclass(frozen=True, slots=True)
class LineUp:
    """The hosts of an attempt, each with its ranks; `news`: what has changed, a line each."""

    hosts: list[Host]
    news: tuple[str, ...] = ()


class Roster:
    """The hosts of one job, over all its attempts.

    Args:
        hosts: with their slots; those of the first attempt, if all can take part.
        spares: what may stand in for them; their own slots do not count.
        least: with how many places filled an attempt may begin; 0: with all.
        first_stays: whether nothing can go on without the first host.
    """

    def __init__(
        self,
        hosts: Sequence[Host],
        spares: Sequence[Host] = (),
        least: int = 0,
        *,
        first_stays: bool = False,
    ) -> None:
        self._named = [*hosts, *spares]
        self._spares = range(len(hosts), len(self._named))
        self._places: list[int | None] = list(range(len(hosts)))
        self._least = least or len(hosts)
        self._first_stays = first_stays
        self._out: dict[int, tuple[int, str]] = {}  # when, and why
        self._attempt = 0
        self._lined_up = [*range(len(hosts))]

    @property
    def is_flexible(self) -> bool:
        """Whether hosts can be replaced or left out."""
        return bool(self._spares) or self._least < len(self._places)

    def put_out(self, hosts: Mapping[int, str], what: str) -> None:
        """These hosts of the last line-up are out: their numbers there, and why; "": unknown."""
        for index, why in hosts.items():
            if index < len(self._lined_up):
                text = f"{what} ({why.rstrip('.')})" if why else what
                self._out[self._lined_up[index]] = self._attempt, text

    def next_attempt(self) -> None:
        """An attempt is over; another follows."""
        self._attempt += 1

    def line_up(self, there: Collection[int] | None = None) -> LineUp | None:
        """The hosts of the attempt that begins now; None where they are not enough.

        Args:
            there: of hosts that come by themselves: those that are there, by number.
        """
        before, places = self._places, [*self._places]
        for place, host in enumerate(places):
            if host is not None and self._standing(host, there) != _NEVER_OUT:
                places[place] = None
        for worst, wanted in ((_LONG_OUT, len(places)), (_JUST_OUT, self._least)):
            for place in range(len(places)):
                if places[place] is None and _filled(places) < wanted:
                    places[place] = self._choice(place, places, worst, there)
        taken = [host for host in places if host is not None]
        if len(taken) < self._least or (self._first_stays and places[0] != 0):
            return None
        news = self._news(before, places)
        self._places, self._lined_up = places, taken
        for host in taken:
            self._out.pop(host, None)
        hosts = [
            replace(self._named[host], slots=self._named[place].slots)
            for place, host in enumerate(places)
            if host is not None
        ]
        return LineUp(hosts, news)

    def shortage(self) -> str:
        """Why there are not enough, where `line_up` has said so."""
        if self._least < len(self._places):
            return f"at least {self._least} hosts are needed, and fewer are left"
        return "no spare is left" if self._spares else ""

    def _standing(self, host: int, there: Collection[int] | None) -> int | None:
        """How good a choice it is; None: none at all."""
        if there is not None and host not in there:
            return None
        if host not in self._out:
            return _NEVER_OUT
        since = self._attempt - self._out[host][0]
        if since == 0:
            return None
        return _LONG_OUT if since > 1 or there is not None else _JUST_OUT

    def _choice(
        self,
        place: int,
        places: Sequence[int | None],
        worst: int,
        there: Collection[int] | None,
    ) -> int | None:
        """Who comes to a place that is free, and was free or has been left."""
        found, is_node = [], there is not None
        for host in range(len(self._named)):
            standing = None if host in places else self._standing(host, there)
            # Nodes have numbers of their own, which are those of their places; and who comes back
            # to a place of its own takes no other.
            has_another = host != place and host < len(places) and places[host] is None
            if standing is None or standing > worst or has_another or (is_node and host != place):
                continue
            found.append((standing, host != place, self._out.get(host, (0, ""))[0], host))
        return min(found)[-1] if found else None

    def _news(self, before: Sequence[int | None], places: Sequence[int | None]) -> tuple[str, ...]:
        if not self.is_flexible:
            return ()
        told, gone = [], []
        for old, new in zip(before, places, strict=True):
            if new is None:
                gone += [] if old is None else [self._why(old)]
            elif old is None:
                told.append(f"host {self._named[new].name} takes part again")
            elif old != new:
                told.append(f"{self._why(old)}; {self._stand_in(new, places)}")
            elif new in self._out:
                again = "it is tried again" if self._spares else "it takes part again"
                no_spare = "no spare is left, so " if self._spares else ""
                told.append(f"{self._why(new)}; {no_spare}{again}")
        if gone:
            filled = f"{_filled(places)} of {len(places)} hosts"
            told.append(f"{'; '.join(gone)}; the job goes on with {filled}")
        return tuple(told)

    def _why(self, host: int) -> str:
        why = self._out[host][1] if host in self._out else "is not there"
        return f"host {self._named[host].name} {why}"

    def _stand_in(self, host: int, places: Sequence[int | None]) -> str:
        name = self._named[host].name
        if host in self._out:
            return f"host {name} is tried again in its place"
        left = sum(spare not in places and spare not in self._out for spare in self._spares)
        what = "spare" if host in self._spares else "host"
        return f"{what} {name} takes its place ({left} of {len(self._spares)} spares left)"


def _filled(places: Sequence[int | None]) -> int:
    return sum(host is not None for host in places)
