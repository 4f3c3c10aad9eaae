"""An option of `xla-run` that names hosts, a job or a folder."""

from typing import Any

import click
from click.core import ParameterSource


class Named(click.ParamType):
    """A name of something; "" stands for none of it where the option is not given.

    Typed, it is a variable of the shell that is empty: the job would run elsewhere than meant.
    """

    name = "text"

    def __init__(self, example: str) -> None:
        self._example = example

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        if ctx and param and not str(value).strip() and _is_typed(ctx, param):
            self.fail(f"it is empty; name something, such as {self._example}", param, ctx)
        return str(value)


def _is_typed(ctx: click.Context, param: click.Parameter) -> bool:
    return ctx.get_parameter_source(param.name or "") is ParameterSource.COMMANDLINE
