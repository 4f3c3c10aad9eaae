"""The options of `xla-run` that ship a folder, and what they mean."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from torch_xdist.launcher.facts.errors import UsageError
from torch_xdist.launcher.facts.job import Job
from torch_xdist.launcher.named_option import Named
from torch_xdist.launcher.shipping.manifest import size_text
from torch_xdist.launcher.shipping.tree import MOST_BYTES

_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9}


class Size(click.ParamType):
    """A number of bytes, or one with a unit, such as 800MB or 2GB."""

    name = "size"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        if isinstance(value, int):
            return value
        found = re.fullmatch(r"([0-9]+(?:\.[0-9]*)?)\s*([a-z]*)", value.strip().lower())
        if found is None or found[2] not in _UNITS:
            self.fail(f"{value!r} is no size; give bytes, or a unit: 800MB, 2GB", param, ctx)
        return int(float(found[1]) * _UNITS[found[2]])


@dataclass(frozen=True)
class Asked:
    """The values of those options."""

    ship: str
    ship_limit: int

    def refuse_with(self, other: str, instead: str) -> None:
        """That way to other hosts has no stream by which a folder could travel.

        Raises:
            UsageError: one is to be shipped.
        """
        if self.ship:
            raise UsageError(f"--ship {self.ship}: it does not go with {other}; {instead}")

    def of(self, job: Job) -> Job:
        """The job, with the folder that its hosts are to get a copy of.

        Raises:
            UsageError: there is no such folder, or no host to ship it to.
        """
        if not self.ship:
            return job
        if job.way == "nodes":
            own = "every node runs the code that lies there, and takes none; copy it to all nodes"
            self.refuse_with("--nnodes", own)
        if not job.hosts:
            raise UsageError(
                f"--ship {self.ship}: the command runs on this host, where the folder is; name "
                "other hosts (--hosts, --slurm, ...), or leave --ship out"
            )
        folder = Path(job.cwd, self.ship)
        if not folder.is_dir():
            found = "is no folder" if folder.exists() else "does not exist"
            raise UsageError(f"--ship {self.ship}: it {found}; name the folder of your code")
        return replace(job, ship=str(folder.resolve()), ship_limit_bytes=self.ship_limit)


def options(command: Callable[..., None]) -> Callable[..., None]:
    """`--ship`, `--ship-limit`."""
    for option in reversed(
        (
            click.option(
                "--ship",
                type=Named("."),
                default="",
                metavar="DIR",
                help="copy this folder to every host first (not what git ignores), and run in it",
            ),
            click.option(
                "--ship-limit",
                type=Size(),
                default=MOST_BYTES,
                show_default=size_text(MOST_BYTES),
                help="the most that its files may have",
            ),
        )
    ):
        command = option(command)
    return command


def taken_from(values: dict[str, Any]) -> Asked:
    """The values of our options; they are gone from `values` then."""
    return Asked(values.pop("ship"), values.pop("ship_limit"))
