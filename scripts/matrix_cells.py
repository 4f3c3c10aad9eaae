"""Run the tests in one environment per cell of xdist/releases/tested.py; `scripts/matrix` calls it.

Each cell gets an interpreter of its Python and a virtual environment below runs/matrix, is asked
for the quickstart and for the fast tests of each part, one pytest process per part, and leaves a
column in docs/versions.md and its logs beside the environment. pip's own configuration decides
where packages come from: with an index of torch's CPU builds a cell takes 2 GB, else 8.
"""

import argparse
import datetime
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENTS = ROOT / "runs" / "matrix"
PAGE = ROOT / "docs" / "versions.md"
PARTS = {
    "core": ["tests/xdist/core"],
    "ops": ["tests/xdist/ops"],
    "spmd": ["tests/xdist/spmd", "tests/xdist/sharded_checkpoint"],
    "compile": [f"tests/xdist/{name}" for name in ("dynamo", "export", "builder", "kernels")],
    "collectives": ["tests/collectives"],
    "c10d": ["tests/xdist/ranks"],
    "launcher": ["tests/launcher"],
    # Without what is above: a new folder of tests is in a part from the beginning.
    "rest": ["tests/xdist", "tests/torch_xla", "tests/loaders"],
}
QUICKSTART = "quickstart"
NOTHING_COLLECTED = 5
PINNED_BY_CELL = ("torch", "jax", "jaxlib")
_COUNT = re.compile(r"(\d+) (passed|failed|error|skipped)")
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?\.py(?:::.+?)?)(?: - (.*))?$", re.MULTILINE)
_RELEASES = ("Python", "torch", "jax")
_ROWS = (*_RELEASES, QUICKSTART, *PARTS)
_BEGIN, _END = "<!-- results: written by scripts/matrix -->", "<!-- end of results -->"


class Outcome(NamedTuple):
    """What one part of one cell gave."""

    shown: str  # counts of tests, or `ok`
    failures: list[str]
    seconds: float


def main(arguments: list[str]) -> int:
    cells = {cell.name: cell for cell in tested_cells()}
    parser = argparse.ArgumentParser(prog="scripts/matrix", description=__doc__)
    parser.add_argument("cells", nargs="*", metavar="CELL", help=", ".join(cells))
    parser.add_argument("--parts", default=",".join([QUICKSTART, *PARTS]))
    parser.add_argument("--remake", action="store_true", help="make the environments anew")
    chosen = parser.parse_args(arguments)
    parts = chosen.parts.split(",")
    for word, known in ((chosen.cells, cells), (parts, {QUICKSTART: "", **PARTS})):
        if unknown := set(word) - set(known):
            parser.error(f"no {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    failed = False
    for cell in [cells[name] for name in chosen.cells or cells]:
        python = environment(cell, remake=chosen.remake)
        outcomes = {}
        for part in parts:
            print(f"matrix: {cell.name}: {part}", flush=True)
            outcomes[part] = run_part(cell, python, part)
            print(f"matrix: {cell.name}: {part}: {outcomes[part].shown}", flush=True)
        failed = failed or any(outcome.failures for outcome in outcomes.values())
        PAGE.write_text(updated(PAGE.read_text(), cell, outcomes, datetime.datetime.now()))
    return 1 if failed else 0


def tested_cells() -> Any:
    """The cells, read from their file: the package itself is not installed in this Python."""
    path = ROOT / "xdist" / "releases" / "tested.py"
    spec = importlib.util.spec_from_file_location("tested", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.CELLS


# ---- environments -----------------------------------------------------------------------------


def environment(cell: Any, *, remake: bool = False) -> Path:
    """The interpreter of the cell's environment, which is made where it is not there."""
    folder = ENVIRONMENTS / f"py{cell.python}-torch{cell.torch}-jax{cell.jax}"
    python = folder / "venv" / "bin" / "python"
    stamp = folder / "installed"
    constraints = constraints_of(cell)
    if remake:
        shutil.rmtree(folder, ignore_errors=True)
    if stamp.exists() and stamp.read_text() == constraints:
        return python
    folder.mkdir(parents=True, exist_ok=True)
    print(f"matrix: {cell.name}: installing torch {cell.torch} and jax {cell.jax}", flush=True)
    if not python.exists():
        subprocess.run([interpreter(cell.python), "-m", "venv", folder / "venv"], check=True)
    (folder / "constraints.txt").write_text(constraints)
    pip = [python, "-m", "pip", "install", "--quiet", "-c", folder / "constraints.txt"]
    # torch first and alone, as in scripts/environment.sh.
    for wanted in ([f"torch=={cell.torch}"], ["-e", f"{ROOT}[dev]"]):
        subprocess.run([*pip, *wanted], check=True, cwd=ROOT)
    stamp.write_text(constraints)
    return python


def constraints_of(cell: Any) -> str:
    """The pins of constraints.txt, with the cell's torch and jax."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    kept = [line for line in lines if line.partition("==")[0] not in PINNED_BY_CELL]
    # jaxlib may lag behind a fix of jax alone (0.12.0.1): jax says itself which one it needs.
    return "\n".join([*kept, f"torch=={cell.torch}", f"jax=={cell.jax}", ""])


def interpreter(release: str) -> str:
    """A Python of this release: from PATH, else of pyenv or uv."""
    for command in candidates(release):
        if not shutil.which(command[0]):
            continue
        found = subprocess.run(command, capture_output=True, text=True)
        path = found.stdout.strip()
        if found.returncode == 0 and path:
            return path
    raise SystemExit(
        f"matrix: no Python {release} on PATH, in pyenv or in uv; install one (such as `uv python "
        f"install {release}`), or leave its cells out"
    )


def candidates(release: str) -> Iterator[list[str]]:
    """Commands that print the path of such an interpreter."""
    says = ["-c", "import sys; print(sys.executable)"]
    yield [f"python{release}", *says]
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for path in sorted(root.glob(f"versions/{release}.*/bin/python"), reverse=True):
        yield [str(path), *says]
    yield ["uv", "python", "find", release]


# ---- tests ------------------------------------------------------------------------------------


def run_part(cell: Any, python: Path, part: str) -> Outcome:
    """Run one part; its output goes into a log beside the environment."""
    log = python.parents[2] / f"{part}.log"
    command = [python, "scripts/train_digits.py", "--out", str(log.parent / "digits")]
    if part != QUICKSTART:
        command = [python, "-m", "pytest", "-q", "-m", "not long", *paths(part)]
        # A module that cannot be imported says nothing about the others.
        command.append("--continue-on-collection-errors")
    began = time.monotonic()
    with log.open("w") as file:
        code = subprocess.run(command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT).returncode
    return outcome_of(part, code, log.read_text(), time.monotonic() - began)


def paths(part: str) -> list[str]:
    """What pytest is given for a part."""
    others = [path for other, found in PARTS.items() if other != part for path in found]
    inside = [p for p in others if any(Path(p).is_relative_to(own) for own in PARTS[part])]
    return [*PARTS[part], *(f"--ignore={path}" for path in inside)]


def outcome_of(part: str, code: int, output: str, seconds: float) -> Outcome:
    """What a log says: counts of tests, and which failed with the first words of why."""
    if part == QUICKSTART:
        return Outcome("ok" if code == 0 else "fails", [QUICKSTART] * (code != 0), seconds)
    last = output.strip().splitlines()[-1] if output.strip() else ""
    counts = {word: int(number) for number, word in _COUNT.findall(last)}
    failures = [
        f"`{test}`{f': {why}' if why else ''}" for test, why in _FAILED.findall(output) if test
    ]
    if code not in (0, NOTHING_COLLECTED) and not failures:
        failures = [f"{part}: pytest ended with exit code {code}"]
    bad = counts.get("failed", 0) + counts.get("error", 0)
    shown = f"{counts.get('passed', 0)} / {bad} / {counts.get('skipped', 0)}"
    return Outcome(shown, failures, seconds)


# ---- the page ---------------------------------------------------------------------------------


def updated(page: str, cell: Any, outcomes: dict[str, Outcome], when: datetime.datetime) -> str:
    """The page with this cell's fields and failures in the place of its earlier ones.

    A part that was not run this time keeps what stands there.
    """
    before, rest = page.split(_BEGIN)
    results, after = rest.split(_END)
    shown = fields(results)
    for part, outcome in outcomes.items():
        shown[part, cell.name] = f"{outcome.shown} ({outcome.seconds:.0f} s, {when:%F %H:%M})"
    others = [line for line in results.splitlines() if line.startswith("- ")]
    kept = [line for line in others if not is_replaced(line, cell.name, outcomes)]
    new = [
        f"- {cell.name}, {part}: {failure}"
        for part, outcome in outcomes.items()
        for failure in outcome.failures
    ]
    lines = [*table(shown), "", *sorted([*kept, *new])]
    body = "\n".join(lines).rstrip()
    return f"{before}{_BEGIN}\n\n{body}\n\n{_END}{after}"


def fields(results: str) -> dict[tuple[str, str], str]:
    """The fields of a table by (name of the row, cell)."""
    rows = [[field.strip() for field in line.split("|")[1:-1]] for line in results.splitlines()]
    head, *others = [row for row in rows if row] or [[""]]
    return {(row[0], name): field for row in others for name, field in zip(head[1:], row[1:])}


def table(shown: dict[tuple[str, str], str]) -> list[str]:
    """A column per cell: its releases, and what each part gave there."""
    cells = tested_cells()
    releases = {(word, c.name): getattr(c, word.lower()) for word in _RELEASES for c in cells}
    known = {**shown, **releases}
    rows = [[word, *(known.get((word, c.name), "-") for c in cells)] for word in _ROWS]
    head = ["", *(cell.name for cell in cells)]
    return [f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows]]


def is_replaced(line: str, name: str, outcomes: dict[str, Outcome]) -> bool:
    """Whether a line of failures is of a part that was run again."""
    return any(line.startswith(f"- {name}, {part}:") for part in outcomes)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
