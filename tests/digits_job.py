"""The digits job as ranks of any launcher run it, and what it says last."""

import re
from pathlib import Path

_SCRIPT = Path(__file__).parent.parent / "scripts" / "train_digits.py"

BODY = f"""
    import runpy
    sys.argv = ["digits", "--epochs", "2", "--batch-size", "64", "--out", FOLDER + "/digits"]
    runpy.run_path({str(_SCRIPT)!r}, run_name="__main__")
"""


def last_loss_and_share(out: str, rank: str) -> tuple[str, str]:
    """The loss and the share of right answers that one rank has told last.

    Args:
        rank: what stands in brackets before its lines, a regular expression. The first rank of
            each host has a bar of its own.
    """
    told = "\n".join(re.findall(rf"^\[{rank}\](.*)$", out, re.MULTILINE))
    losses, shares = (re.findall(what, told) for what in (r"loss=([\d.]+)", r"y ([\d.]+)%"))
    return losses[-1], shares[-1]
