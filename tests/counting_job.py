"""A job whose ranks write numbered lines, by which it is seen that none is lost or comes twice."""

import re


def counting(pause_s: float, lines: int = 200) -> str:
    """The body: so many lines a rank, with a pause behind each; at line 20 a rank says "onN"."""
    return f"""
    for number in range({lines}):
        print("line", number, flush=True)
        if number == 20:
            say("on%d" % RANK)
        time.sleep({pause_s})
"""


def lines_of(out: str, rank: int) -> list[int]:
    """The numbers that one rank has written, in their order."""
    return [int(number) for number in re.findall(rf"/{rank}\] line (\d+)$", out, re.M)]
