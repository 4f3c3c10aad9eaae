"""The Ray driver where there is no Ray, or another one: what it says before anything is placed."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from torch_xdist.launcher.facts.errors import ExitCode

MISSING = "raise ModuleNotFoundError(\"No module named 'ray'\")"
OTHER = """
def init(**options):
    raise RuntimeError("Version mismatch: The cluster was started with:\\n  Ray: 2.9.0")
"""
BROKEN = """
def init(**options):
    raise RuntimeError("cannot\\nstart")
"""
UNLUCKY = """
tries = iter([ConnectionError("RuntimeError: Starting Ray client server failed. See its log")])
def init(**options):
    raise next(tries, RuntimeError("Version mismatch: the second try"))
"""
DEAD = "import os\nprint('ray: abort', file=__import__('sys').stderr, flush=True)\nos._exit(9)"


@pytest.mark.parametrize(
    ("ray", "code", "told"),
    [
        (MISSING, ExitCode.PREFLIGHT, f"--ray: Ray cannot be loaded by {sys.executable} (No modul"),
        (MISSING, ExitCode.PREFLIGHT, "install it: pip install 'torch-xdist[ray]'"),
        (OTHER, ExitCode.PREFLIGHT, "Ray cluster auto: Version mismatch: The cluster was started "),
        (OTHER, ExitCode.PREFLIGHT, "; use the cluster's releases of Ray and Python"),
        (BROKEN, ExitCode.HOST, "no Ray cluster can be found here: cannot start; start one (ray "),
        (
            UNLUCKY,
            ExitCode.PREFLIGHT,
            "auto: starting Ray client server failed; Ray is asked for an",
        ),
        (UNLUCKY, ExitCode.PREFLIGHT, "Ray cluster auto: Version mismatch: the second try"),
        (DEAD, ExitCode.HOST, "host node0: the Ray driver ended: ray: abort"),
    ],
)
def test_a_ray_that_cannot_be_used_ends_the_job_with_what_to_do(
    start: Callable, tmp_path: Path, ray: str, code: ExitCode, told: str
) -> None:
    (tmp_path / "ray.py").write_text(ray)
    env = {"PYTHONPATH": str(tmp_path), "RAY_ADDRESS": ""}
    ended = start("", "--ray", "--nodes", "1", "-n", "1", env=env).end(limit_s=40)
    assert ended.code == code, ended.err
    assert told in ended.err
