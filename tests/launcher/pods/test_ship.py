"""`xla-run --ship` to two hosts over ssh: what travels, where ranks start, what is left."""

from collections.abc import Callable
from pathlib import Path

import pytest

TWO = ("--hosts", "a,b", "-n", "1")


def test_first(on_hosts: Callable) -> None:
    job = on_hosts("import os; print('in', os.getcwd(), __file__)", *TWO, "--ship", ".", env={"FOLDER":"/tmp"})
    ended = job.end()
    print(ended.out, ended.err)
    assert ended.code == 0
    raise AssertionError
