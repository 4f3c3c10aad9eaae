"""The graphs that XLA_SAVE_TENSORS_FILE wrote, read back: what ran where, and what changed."""

import difflib
import itertools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

_BLOCK = re.compile(
    r"TensorsGraphInfo:\n(?P<frames>(?:.*\S.*\n)*)"
    r"(?:(?!TensorsGraphInfo:|## BEGIN_GRAPH).*\n)*?"
    r"(?:Root )?Hashes: \((?P<hashes>[^)]*)\)\n"
    r"(?:(?!TensorsGraphInfo:|## BEGIN_GRAPH).*\n)*?"
    r"## BEGIN_GRAPH\n(?P<text>(?:(?!## END_GRAPH).*\n)*)## END_GRAPH"
)
_ROW = re.compile(r"(\s*)%\d+ = (.*::[^(]+\()([^)]*)(.*)")


@dataclass(frozen=True, slots=True)
class Graph:
    """One graph of a file.

    Attributes:
        frames: the user's frames that ran it, innermost first.
        hashes: of its roots, as the file names them.
    """

    frames: str
    hashes: str
    text: str


def parse_graphs(text: str) -> list[Graph]:
    """The graphs of a file, in its order."""
    return [Graph(m["frames"].rstrip("\n"), m["hashes"], m["text"]) for m in _BLOCK.finditer(text)]


def _without_numbers(graph: str) -> list[str]:
    """Rows without the numbers of operands, which one row more would change in all that follow."""
    return [
        f"{m[1]}{m[2]}{re.sub(r'%[0-9.]+', '?', m[3])}{m[4]}" if (m := _ROW.match(line)) else line
        for line in graph.splitlines()
    ]


def graph_report(graphs: Sequence[Graph]) -> str:
    """Which graphs ran from which frames, and how those of one place differ from each other."""
    by_frames: dict[str, list[Graph]] = {}
    for graph in graphs:
        by_frames.setdefault(graph.frames, []).append(graph)
    parts = [f"Parsed {len(graphs)} graph(s)\n{len(by_frames)} frame group(s)"]
    for frames, group in by_frames.items():
        counts = Counter(graph.text for graph in group)
        parts.append(f"Frame has {len(group)} graph(s) ({len(counts)} unique):\n{frames}\n")
        parts += _differences(counts)
    return "\n".join([*parts, *_collisions(graphs)]) + "\n"


def _differences(counts: Counter[str]) -> list[str]:
    """Each unique graph against the one before it."""
    texts = [*counts]
    found = []
    for number, (old, new) in enumerate(itertools.pairwise(texts)):
        before, after = counts[old], counts[new]
        found.append(f"  Frame {number} (count={before}) vs {number + 1} (count={after})")
        names = f"frame-{number}", f"frame-{number + 1}"
        diff = difflib.unified_diff(
            _without_numbers(old), _without_numbers(new), *names, lineterm=""
        )
        found += [f"  {line}" for line in diff]
    return found


def _collisions(graphs: Sequence[Graph]) -> list[str]:
    """Graphs that differ and have the same hash."""
    by_hash: dict[str, dict[str, list[int]]] = {}
    for number, graph in enumerate(graphs):
        by_hash.setdefault(graph.hashes, {}).setdefault(graph.text, []).append(number)
    return [
        f"Collision on hash {hashes}: graphs {' and '.join(map(str, groups.values()))} differ"
        for hashes, groups in by_hash.items()
        if len(groups) > 1
    ]
