"""The command. Exit codes: 0, or 2 for wrong usage."""

import argparse
import json
import sys
import warnings
from collections import Counter
from collections.abc import Iterable

from torch_xdist.surface.compare import (
    ABSENT,
    DIFFERS,
    THERE,
    Row,
    compare,
    exceptions,
    names,
)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m torch_xdist.surface",
        description="Which names of torch_xla 2.9.0 are here: name by name, and how they differ.",
        epilog="Example: python -m torch_xdist.surface torch_xla.runtime --status absent",
    )
    parser.add_argument(
        "module", nargs="*", help="only these modules and what lies in them (default: all)"
    )
    parser.add_argument(
        "--status", action="append", choices=[THERE, DIFFERS, ABSENT], help="only these"
    )
    parser.add_argument("--json", action="store_true", help="for programs")
    options = parser.parse_args()
    wanted = {
        module: kinds
        for module, kinds in names().items()
        if not options.module or any(f"{module}.".startswith(f"{m}.") for m in options.module)
    }
    if not wanted:
        parser.error(f"torch_xla 2.9.0 has no module {', '.join(options.module)}")
    with warnings.catch_warnings():
        # What a deprecated module says of itself is no answer to this question.
        warnings.simplefilter("ignore")
        rows = list(compare(wanted))
    shown = [row for row in rows if not options.status or row.status in options.status]
    print(json.dumps([row.as_json() for row in shown], indent=1) if options.json else text(shown))
    if not options.json:
        print(totals(rows))
        if not options.module:
            print("\nLeft out on purpose:")
            print(text(exceptions()))
    return 0


def text(rows: Iterable[Row]) -> str:
    """A line for each name."""
    return "\n".join(
        f"{row.status:8} {row.module}.{row.name}" + (f"  ({row.how})" if row.how else "")
        for row in rows
    )


def totals(rows: Iterable[Row]) -> str:
    """How many of each."""
    counts = Counter(row.status for row in rows)
    told = ", ".join(f"{counts[status]} {status}" for status in (THERE, DIFFERS, ABSENT))
    return f"{counts.total()} names of torch_xla 2.9.0: {told}"


if __name__ == "__main__":
    sys.exit(main())
