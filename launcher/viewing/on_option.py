"""`--on HOST` of the commands that look after jobs: the same command, there."""

import signal
import sys
from typing import Any

import click

from torch_xdist.launcher.facts import host_list, settings
from torch_xdist.launcher.facts.errors import UsageError
from torch_xdist.launcher.named_option import Named
from torch_xdist.launcher.viewing import reader
from torch_xdist.launcher.viewing.elsewhere import Command, Elsewhere
from torch_xdist.launcher.viewing.screen import cleaned

_OURS = ("on", "python", "ssh_command")


class OnHost(click.Command):
    """A command that takes `--on HOST`, and then runs on that host."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.params += [
            click.Option(
                ["--on"],
                type=Named("me@login"),
                default="",
                metavar="HOST",
                help="on that machine, by ssh: a, me@a:2222",
            ),
            click.Option(
                ["--python"], default="", help="with --on: the interpreter there [as here]"
            ),
            click.Option(["--ssh-command"], default="", help="with --on: [XLA_RUN_SSH; ssh]"),
        ]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta["words"] = self._words(ctx, [*args])
        return super().parse_args(ctx, args)

    def _words(self, ctx: click.Context, args: list[str]) -> list[str]:
        """What was typed but for our options, in a form that cannot be taken for another."""
        try:
            given, _, order = self.make_parser(ctx).parse_args(args)
        except click.UsageError:
            return []  # told by those who parse it for good
        words, arguments = [], []
        for param in dict.fromkeys(order):
            value = given.get(param.name)
            if param.name in _OURS or value is None:
                continue
            if isinstance(param, click.Argument):
                arguments.append(str(value))
            elif isinstance(param, click.Option):
                name = max(param.opts, key=len)
                words.append(name if param.is_flag else f"{name}={value}")
        return [*words, *(["--", *arguments] if arguments else [])]

    def invoke(self, ctx: click.Context) -> Any:
        on, python, ssh_command = (ctx.params.pop(name) for name in _OURS)
        if on:
            sys.exit(self.elsewhere(ctx, self._asked(ctx, on, python, ssh_command)))
        if python or ssh_command:
            raise UsageError("--python and --ssh-command are for another host; give --on HOST too")
        return super().invoke(ctx)

    def elsewhere(self, ctx: click.Context, asked: Elsewhere) -> int:
        """Run it there, and print what it prints; its exit code.

        Raises:
            HostError: it cannot be run there.
        """
        if ctx.params.get("follow"):
            reader.leave_with()
        command = begun(asked)
        for line in command.lines(show_error):
            _print(line)
        return command.exit_code()

    def _asked(self, ctx: click.Context, on: str, python: str, ssh_command: str) -> Elsewhere:
        hosts = host_list.of_option(on, "--on")
        if len(hosts) != 1:
            raise UsageError(
                f"--on {on}: {len(hosts)} hosts; name the one where the job was started"
            )
        environ = {"XLA_RUN_SSH": ssh_command} if ssh_command else settings.environment()
        words = [str(self.name), *ctx.meta["words"]]
        return Elsewhere(hosts[0], settings.ssh_command(environ), python or sys.executable, words)


def begun(asked: Elsewhere) -> Command:
    """The command, started; Ctrl-C and SIGTERM reach it there."""
    command = Command(asked)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda got, _: command.signal(got))
    return command


def _print(line: bytes) -> None:
    text = line.decode(errors="replace")
    click.echo(cleaned(text) if sys.stdout.isatty() else line, nl=False)


def show_error(line: bytes) -> None:
    """Print what the command there says on stderr, on a terminal without control characters."""
    text = line.decode(errors="replace")
    click.echo(cleaned(text) if sys.stderr.isatty() else line, nl=False, err=True)
