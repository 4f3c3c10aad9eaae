"""The nursery: one import for all ranks, no thread, no device, and any number of ranks."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from torch_xdist.launcher.ways_in.spawn import spawn


def test_more_ranks_than_cores_start(monkeypatch) -> None:
    monkeypatch.setenv("XLA_RUN_PREIMPORT", "")
    assert spawn(lambda rank: rank, nprocs=16) == list(range(16))


def test_the_imports_of_the_nursery_start_no_thread_and_no_backend() -> None:
    code = (
        "import os\n"
        "from torch_xdist.launcher.on_host import worker\n"
        "worker.warm()\n"
        "from jax._src import xla_bridge\n"
        "print(len(os.listdir('/proc/self/task')), xla_bridge.backends_are_initialized())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.split() == ["1", "False"], done.stderr


def test_a_preimported_module_that_starts_a_thread_is_a_warning(
    start: Callable, tmp_path: Path
) -> None:
    (tmp_path / "threaded.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()"
    )
    env = {"XLA_RUN_PREIMPORT": "threaded", "PYTHONPATH": str(tmp_path)}
    ended = start("print('ran')", "-n", "1", env=env).end()
    assert ended.code == 0 and ended.out == "ran\n"
    assert "warning: what XLA_RUN_PREIMPORT names has started threads" in ended.err
