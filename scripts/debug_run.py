#!/usr/bin/env python
"""Run a command with everything noted, and pack what a bug report needs.

    .venv/bin/python scripts/debug_run.py --outfile /tmp/debug_run.tar.gz -- python -u train.py

The folder (and the archive) holds `logs` (what the command printed), `graphs*` and `graphdir/`
(each graph that ran), `graph_report` (which ran from where, and how they differ), `metrics*`,
`metrics_report`, `metrics_imgdir/` and `tensorboard/` (the numbers of every step). A hundred steps
or fewer are enough; Ctrl-C ends the command, and what was noted until then is packed. The exit code
is the command's.
"""

import argparse
import getpass
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

from torch_xdist.debug.graph_files import graph_report, parse_graphs
from torch_xdist.debug.metrics_files import (
    metric_points,
    metrics_report,
    save_plots,
    save_to_tensorboard,
)

_VMODULE = "tensor=5,computation_client=5,aten_xla_type=1"
_GRACE_S = 10.0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],  # type: ignore[union-attr]
        usage="%(prog)s [options] -- COMMAND ...",
    )
    parser.add_argument("--outfile", type=Path, help="the tar.gz archive to make")
    parser.add_argument("--outdir", type=Path, help="the folder of results, which must not exist")
    parser.add_argument("--hlo", action="store_true", help="graphs as HLO instead of text")
    parser.add_argument("--tidy", action="store_true", help="delete the folder once it is packed")
    parser.add_argument("--vmodule", default="", help="more entries of TF_CPP_VMODULE")
    parser.add_argument("command", nargs="+", metavar="COMMAND", help="what to run, after --")
    found = parser.parse_args()
    if found.tidy and found.outfile is None:
        parser.error("--tidy deletes what was noted; give an archive for it with --outfile")
    return found


def new_folder(wanted: Path | None) -> Path:
    """The folder of results, made anew. Raises RuntimeError where it exists."""
    if wanted is not None:
        if wanted.exists():
            raise RuntimeError(f"Output folder must not exist: {wanted}; name another --outdir")
        wanted.mkdir(parents=True)
        return wanted
    base = Path(tempfile.gettempdir()) / f"debug_run-{socket.gethostname()}-{getpass.getuser()}"
    names = (base if n == 0 else base.with_name(f"{base.name}-{n}") for n in range(10_000))
    for folder in names:
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        print(f"Writing run results to {folder}", file=sys.stderr)
        return folder
    raise RuntimeError(f"Output folder must not exist: {base}-N; remove old ones")


def environment(folder: Path, hlo: bool, vmodule: str) -> dict[str, str]:
    """What the command gets."""
    added = {
        "XLA_IR_DEBUG": "1",
        "XLA_HLO_DEBUG": "1",
        "TF_CPP_LOG_THREAD_ID": "1",
        "XLA_DUMP_FATAL_STACK": "1",
        "TF_CPP_VMODULE": ",".join(filter(None, [_VMODULE, vmodule])),
        "TF_CPP_MIN_LOG_LEVEL": "0",
        "XLA_SAVE_TENSORS_FILE": str(folder / "graphs"),
        "XLA_METRICS_FILE": str(folder / "metrics"),
        **({"XLA_SAVE_TENSORS_FMT": "hlo"} if hlo else {}),
    }
    return {**os.environ, **added}


def run(command: list[str], environ: dict[str, str], log: Path) -> int:
    """The exit code of the command, whose output is shown and kept; a signal ends it, not us."""
    child = subprocess.Popen(
        command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, process_group=0
    )

    def stop(number: int, frame: object) -> None:
        print("Termination handler called!", file=sys.stderr)
        os.killpg(child.pid, signal.SIGTERM)
        signal.signal(signal.SIGALRM, lambda number, frame: os.killpg(child.pid, signal.SIGKILL))
        signal.setitimer(signal.ITIMER_REAL, _GRACE_S)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    assert child.stdout is not None
    with log.open("wb") as file:
        while chunk := os.read(child.stdout.fileno(), 65536):
            file.write(chunk)
            file.flush()
            sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()
    code = child.wait()
    signal.setitimer(signal.ITIMER_REAL, 0)
    return code if code >= 0 else 128 - code


def report_graphs(folder: Path) -> None:
    """Split the first rank's graphs, and say how they differ."""
    text = _first(folder, "graphs")
    if text is None:
        return
    graphs = parse_graphs(text)
    (folder / "graphdir").mkdir()
    for number, graph in enumerate(graphs):
        (folder / "graphdir" / f"graph_{number:04d}").write_text(graph.text)
    (folder / "graph_report").write_text(graph_report(graphs))


def report_metrics(folder: Path) -> None:
    """Tables, pictures and TensorBoard scalars of the first rank's metrics."""
    text = _first(folder, "metrics")
    if text is None:
        return
    points = metric_points(text)
    (folder / "metrics_report").write_text(metrics_report(points))
    _optional(lambda: save_plots(points, folder / "metrics_imgdir"))
    _optional(lambda: save_to_tensorboard(points, folder / "tensorboard"))


def _optional(save: Callable[[], None]) -> None:
    try:
        save()
    except ImportError as error:
        print(f"debug_run: left out: {error}; install it for that part", file=sys.stderr)


def _first(folder: Path, name: str) -> str | None:
    """The file of the first rank; None where nothing was written."""
    found = min(folder.glob(f"{name}*"), key=lambda path: int(path.suffix[1:] or 0), default=None)
    return None if found is None else found.read_text()


def main() -> int:
    args = arguments()
    folder = new_folder(args.outdir)
    environ = environment(folder, args.hlo, args.vmodule)
    print("XLA Environment:")
    for name, value in sorted(environ.items()):
        if re.match(r"XLA_|XRT_|TF_", name) and "SECRET" not in name:
            print(f"  {name}={value}", flush=True)
    code = run(args.command, environ, folder / "logs")
    report_graphs(folder)
    report_metrics(folder)
    if args.outfile is not None:
        with tarfile.open(args.outfile, "w:gz") as archive:
            archive.add(folder, folder.name)
        if args.tidy:
            shutil.rmtree(folder)
    return code


if __name__ == "__main__":
    sys.exit(main())
