"""Runs `xla-run --k8s` from outside, with a stand-in for kubectl whose pods are real processes."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kubectl_stand_in import stand_in
from processes import kill_marked

from torch_xdist.system import process_tree

XLA_RUN = (sys.executable, "-m", "torch_xdist.launcher")
LIMIT_S = 60.0
# In place of the interpreter of an image: it runs what stands after the options of xla-run.
_PLAIN = '#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nshift\nexec "$@"\n'


@dataclass
class Job:
    """An `xla-run --k8s` that was started."""

    process: "subprocess.Popen[str]"
    folder: Path
    mark: str

    def end(self) -> tuple[int, str, str]:
        """Its exit code, stdout and stderr; nothing of it, here or in a pod, is alive then."""
        out, err = self.process.communicate(timeout=LIMIT_S)
        end_s = time.monotonic() + 10.0
        while (left := process_tree.marked(self.mark)) and time.monotonic() < end_s:
            time.sleep(0.05)
        assert not left, (left, out, err)
        return self.process.returncode, out, err

    def wait_for(self, pattern: str) -> None:
        """Wait for a file in the folder, such as the log of a pod with something in it."""
        end_s = time.monotonic() + LIMIT_S
        while not any(path.stat().st_size for path in self.folder.glob(pattern)):
            assert time.monotonic() < end_s and self.process.poll() is None, pattern
            time.sleep(0.05)


@contextmanager
def jobs(root: Path) -> Iterator[Callable[..., Job]]:
    """`start("--nodes", "2", "--", "sh", "-c", ...)`: job `train`, whose ranks have 2 s to end.

    Without `new` the last job is followed. With `ranks` the pods run what is tested, else their
    command alone. At the end nothing is left.
    """
    started: list[Job] = []

    def begin(
        *words: str,
        faults: dict[str, list[str]] | None = None,
        new: bool = True,
        ranks: int = 0,
    ) -> Job:
        if new:
            folder = root / f"job{len(started)}"
            folder.mkdir()
            (folder / "plain").write_text(_PLAIN)
            (folder / "plain").chmod(0o755)
        else:
            folder = started[-1].folder
        path = stand_in(folder, faults)
        mark = f"XLA_RUN_TEST=k8s-{folder}"
        name, _, value = mark.partition("=")
        environ = {**os.environ, "PATH": path, name: value, "XLA_RUN_STATE_DIR": str(folder)}
        first = ["--k8s", "train", "--graceful-stop", "2", "--notice-after", "1"]
        if new:
            python = sys.executable if ranks else str(folder / "plain")
            first += ["--image", "reg/t:1", "-n", str(ranks or 1), "--python", python]
        process = subprocess.Popen(
            [*XLA_RUN, *first, *words],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(Job(process, folder, mark))
        return started[-1]

    try:
        yield begin
    finally:
        for job in started:
            job.process.kill()
            kill_marked(job.mark)
            job.process.communicate()
