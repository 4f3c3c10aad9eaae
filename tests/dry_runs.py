"""What `xla-run --dry-run` shows, with nothing of this machine in it."""

import os
from pathlib import Path

from click.testing import CliRunner

from torch_xdist.launcher.facts import settings
from torch_xdist.launcher.ways_in.cli import cli


def dry_run(folder: Path, *words: str, **env: str | None) -> str:
    """What it shows in `folder`, which is called /data/job there."""
    here = {name: None for name in settings.passed_on(settings.environment())}
    before = os.getcwd()
    os.chdir(folder)
    try:
        found = CliRunner().invoke(cli, ["--dry-run", *words], env={**here, **env})
    finally:
        os.chdir(before)
    assert found.exit_code == 0, (found.output, found.exception)
    return found.output.replace(str(folder), "/data/job")
