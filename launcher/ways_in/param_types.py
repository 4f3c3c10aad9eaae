"""The kinds of values that options of `xla-run` take."""

import contextlib
import re
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from torch_xdist.launcher.facts import registry, settings
from torch_xdist.launcher.facts.errors import LauncherError

_NUMBER = re.compile(r"[0-9]+(\.[0-9]*)?")
# September 2001 on: ten digits. Four months in seconds have eight, as a date without dashes.
_FIRST_EPOCH_S, _LONGEST_S = 1e9, 1e7


class Seconds(click.ParamType):
    """A duration: a number of seconds, or one with a unit, such as 90s or 2m."""

    name = "duration"

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        if isinstance(value, float):
            return value
        try:
            return settings.parse_seconds(value, param.opts[0] if param else "duration")
        except LauncherError as error:
            self.fail(str(error), param, ctx)


class Since(click.ParamType):
    """A duration before now, an ISO time, or seconds since 1970: as the latter.

    A bare number is a duration where it is small and a time where it is as large as those of our
    days. What may be either, such as a date without dashes, is refused.
    """

    name = "duration|time"

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        if isinstance(value, float):
            return value
        number = str(value).removeprefix("@")
        if _NUMBER.fullmatch(number):
            return self._of_number(float(number), str(value), param, ctx)
        with contextlib.suppress(ValueError):
            return datetime.fromisoformat(value).timestamp()
        try:
            return time.time() - settings.parse_seconds(value, "--since")
        except LauncherError as error:
            self.fail(f"{error}; or a time such as 2031-05-17T08:30", param, ctx)

    def _of_number(self, number: float, value: str, param: Any, ctx: Any) -> float:
        is_time = value.startswith("@") or _FIRST_EPOCH_S <= number < 100 * _FIRST_EPOCH_S
        if not is_time and number >= _LONGEST_S:
            self.fail(
                f"--since: {value} may be a duration or a time; write a duration with its unit "
                "(2000h), a date with dashes (2031-05-17), seconds since 1970 as @1764000000",
                param,
                ctx,
            )
        return number if is_time else time.time() - number


class NodeCount(click.ParamType):
    """A number of nodes, or MIN:MAX: (MIN, MAX), the same number twice where there is one."""

    name = "N|MIN:MAX"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        least, _, most = str(value).partition(":")
        numbers = [least, most or least]
        if (":" in str(value) and not most) or not all(one.isdecimal() for one in numbers):
            self.fail(f"{value!r}: a whole number is needed, or MIN:MAX, such as 2:4", param, ctx)
        found = int(numbers[0]), int(numbers[1])
        if not 1 <= found[0] <= found[1]:
            self.fail(f"{value!r}: numbers from 1 up are needed, the smaller first", param, ctx)
        return found


class Count(click.ParamType):
    """A number of ranks, or a word of torchrun for "as many as there are devices" (0)."""

    name = "N|auto"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        if value in ("auto", "gpu", "tpu", "cpu", "xla"):
            return 0
        if not str(value).isdecimal() or int(value) == 0:
            self.fail(f"{value!r}: a whole number from 1 up is needed, or auto", param, ctx)
        return int(value)


class JobName(click.ParamType):
    """The name of a job, or a beginning of it; a shell completes those that run here."""

    name = "job"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        if ctx.params.get("on"):  # a login for every key that is typed takes too long
            return []
        names = [record["job"] for record in registry.running(_state_dir())]
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def _state_dir() -> Path:
    return settings.state_dir(settings.environment())
