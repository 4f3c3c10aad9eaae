"""The command. Exit codes: 0 the installation fits, 1 a hook or a device is missing, 2 usage."""

import argparse
import json
import sys

from torch_xdist.doctor.report import is_fit, report
from torch_xdist.doctor.text import as_text

_EPILOG = "Exit codes: 0 the installation fits, 1 something is missing, 2 wrong usage."


def main() -> int:
    """Print the report."""
    parser = argparse.ArgumentParser(
        prog="python -m torch_xdist.doctor",
        description="What is installed, whether it fits, and what the device finds.",
        epilog=_EPILOG,
    )
    parser.add_argument("--json", action="store_true", help="for programs and bug reports")
    parser.add_argument(
        "--timeout", type=float, default=120, metavar="S", help="limit for each check (120)"
    )
    options = parser.parse_args()
    found = report(timeout_s=options.timeout)
    print(json.dumps(found, indent=1) if options.json else as_text(found))
    return 0 if is_fit(found) else 1


if __name__ == "__main__":
    sys.exit(main())
