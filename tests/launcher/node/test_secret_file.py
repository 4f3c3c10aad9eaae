"""`--secret-file`: a secret from a file that only its owner reads."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from node_jobs import SECRET, Nodes

from torch_xdist.launcher.facts.errors import UsageError
from torch_xdist.launcher.node import secret_file


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "secret"
    found.write_text(SECRET + "\n")
    found.chmod(0o600)
    return found


@pytest.mark.long
def test_nodes_know_each_other_by_the_same_file(nodes: Nodes, file: Path) -> None:
    body = "say('on%d' % RANK, os.environ['XLA_RUN_SECRET'])"
    both = [
        nodes.node(rank, body, "--secret-file", str(file), env={"XLA_RUN_SECRET": ""})
        for rank in (0, 1)
    ]
    ended = [job.end() for job in both]
    assert [one.code for one in ended] == [0, 0], [one.err for one in ended]
    # Ranks have a secret of their own, as otherwise.
    told = {(nodes.folder / f"on{rank}").read_text() for rank in range(4)}
    assert len(told) == 1 and SECRET not in told


def test_a_file_and_the_variable_are_not_both_taken(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = click.Context(click.Command("run"))
    option = click.Option(["--secret-file"])
    monkeypatch.delenv("XLA_RUN_SECRET", raising=False)
    secret_file.take(context, option, "")
    assert "XLA_RUN_SECRET" not in os.environ
    monkeypatch.setenv("XLA_RUN_SECRET", "5e" * 16)
    with pytest.raises(UsageError, match="XLA_RUN_SECRET is set too; unset it, or leave out the"):
        secret_file.take(context, option, str(file))


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda path: path.chmod(0o640), r"others may use it \(mode 640\); make it yours alone: c"),
        (lambda path: path.unlink(), "No such file or directory; name a file here"),
        (lambda path: (path.unlink(), path.mkdir()), "it is no file; one with 32 hexadecimal dig"),
        (lambda path: (path.unlink(), os.mkfifo(path)), "it is no file"),
    ],
)
def test_what_is_no_file_of_ones_own_is_refused(
    file: Path, spoil: Callable[[Path], Any], why: str
) -> None:
    spoil(file)
    with pytest.raises(UsageError, match=f"--secret-file .*secret: {why}"):
        secret_file.read(str(file))


def test_a_file_of_another_user_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() == 0:  # whose files are anybody's
        os.chown(file, 12345, -1)
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    with pytest.raises(UsageError, match=r"it belongs to user \d+; a file of your own is needed"):
        secret_file.read(str(file))
