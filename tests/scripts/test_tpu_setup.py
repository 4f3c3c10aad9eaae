"""The set-up of a TPU host, as far as a machine without one goes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "tpu_setup.sh"


def ran(*words, **variables):
    return subprocess.run(
        ["bash", str(SCRIPT), *words],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **variables},
    )


def test_what_is_installed_is_checked_and_no_step_is_tried_without_a_chip():
    done = ran("--check-only", XDIST_VENV=sys.prefix)
    if "0 TPU chips" not in done.stdout:
        pytest.skip("this machine has TPUs")
    assert done.returncode == 0, done.stderr
    assert "jax, jaxlib and libtpu go together, and nobody else has a chip" in done.stdout
    assert done.stdout.endswith("tpu_setup: no chip, so no step was tried\n")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--check-only"], 1, "there is no /nowhere/bin/python; run without --check-only first"),
        (["--from"], 2, "--from: a wheel or a folder is needed"),
        (["--now"], 2, "unknown option --now; --from WHEEL_OR_FOLDER and --check-only are known"),
    ],
)
def test_what_is_missing_or_unknown_is_named(words, code, said):
    done = ran(*words, XDIST_VENV="/nowhere")
    assert done.returncode == code and said in done.stderr
