"""How long compilations took in earlier runs, as an estimate for the next one.

A program is known by the user's line that ended its step and its number of operators, so that it is
the same one after a change of shapes, and in another release: that is when it is compiled again.
"""

import json

from torch_xdist.core.kept import on_disk

# Shorter ones are over before anybody asks.
_LEAST_S = 5.0
_MOST = 200
_NAME = "compile times"


def last_s(where: str, rows: int) -> float | None:
    """How long it took the last time, in seconds; None where that is not known."""
    found = _read().get(_key(where, rows))
    return float(found) if isinstance(found, int | float) else None


def keep(where: str, rows: int, took_s: float) -> None:
    """Remember how long a compilation took."""
    if took_s < _LEAST_S:
        return
    times = _read()
    # The newest are at the end.
    times.pop(_key(where, rows), None)
    times[_key(where, rows)] = round(took_s, 1)
    for key in list(times)[: max(len(times) - _MOST, 0)]:
        del times[key]
    on_disk.keep(_NAME, json.dumps(times).encode(), of_all=True)


def _key(where: str, rows: int) -> str:
    return f"{where} {rows}"


def _read() -> dict[str, float]:
    try:
        found = json.loads(on_disk.find(_NAME, of_all=True) or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
