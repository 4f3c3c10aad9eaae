"""The kinds of values that options of `xla-run` take."""

from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from torch_xdist.launcher.facts import registry, settings
from torch_xdist.launcher.facts.errors import LauncherError


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
