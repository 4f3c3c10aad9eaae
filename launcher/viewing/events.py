"""What viewers are told of a job: events of its head, one JSON object per line.

No secret of the job is among them: neither its token nor the results of its ranks.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

Facts = dict[str, Any]

SHOWN = ("log", "attempt", "start", "note", "beats", "end")
_KEPT_BACK = ("token", "address")


def encoded(event: str, facts: Mapping[str, Any]) -> bytes:
    """One event as a line."""
    told = {key: value for key, value in facts.items() if key not in _KEPT_BACK}
    return (json.dumps({"event": event, **told}) + "\n").encode()


def decoded(line: bytes) -> tuple[str, Facts]:
    """What `encoded` was given.

    Raises:
        ValueError: it is something else.
    """
    facts = json.loads(line)
    return str(facts.pop("event")), facts


def size(event: str, facts: Mapping[str, Any]) -> tuple[int, int]:
    """About how many bytes an event has, and how many lines of ranks."""
    if event != "log":
        return len(str(facts.get("text", ""))) + 200, 0
    return sum(map(len, facts["lines"])) + 100 * len(facts["lines"]) + 200, len(facts["lines"])


def in_turn(*shows: Callable[..., None]) -> Callable[..., None]:
    """What shows every event to each of them."""

    def show(event: str, **facts: Any) -> None:
        for one in shows:
            one(event, **facts)

    return show
