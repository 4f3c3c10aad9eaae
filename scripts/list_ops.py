#!/usr/bin/env python
"""Write docs/ops.md: how every ATen operator is served on the device.

    .venv/bin/python scripts/list_ops.py [--check]

The percentages at its top come from docs/ops_sweep.json, one entry per dtype, which
`tests/sweep.py --record` writes after a whole sweep. `--check` writes nothing and fails when the
page is out of date.
"""

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch._decomp import global_decomposition_table

import torch_xdist.core.torch_side.registration  # noqa: F401
from torch_xdist.core.alias.views import make_view
from torch_xdist.core.composites.sparse import KERNELS
from torch_xdist.core.record import cpu_only, dispatch
from torch_xdist.core.trace.operators import op_of
from torch_xdist.ops.table import LOWERINGS

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE = DOCS / "ops.md"
SWEEP = DOCS / "ops_sweep.json"
# Handlers that serve whatever the schema allows.
GENERAL = (dispatch.write_handler, dispatch.composite_handler, make_view)
MEANINGS = {
    "lowered": "a row of the lowering table",
    "view": "a view: no row until it is read or written",
    "derived": "an in-place or out= form, derived from the schema of its functional form",
    "handled": "a handler of its own: copies, reads, storage",
    "composite": "torch makes it of other operators before it arrives",
    "decomposed": "torch's decomposition, recorded once while a program is built",
    "sparse": "of sparse COO tensors alone: a kernel on their indices and values",
    "fallback": "eager torch on the CPU, counted as `aten::NAME`",
    "refused": "an error that says why",
}


def overloads() -> list[Any]:
    """Every overload of the aten namespace, by name."""
    known = torch._C._dispatch_get_all_op_names()
    names = sorted(n.removeprefix("aten::") for n in known if n.startswith("aten::"))
    found = []
    for name in names:
        packet, _, overload = name.partition(".")
        func = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
        if func is not None:
            found.append(func)
    return found


def served(func: Any) -> str:
    """How one overload is served; the keys of MEANINGS."""
    dispatch.learn(func)
    op = op_of(func)
    name, table = op.name, global_decomposition_table["post_autograd"]
    if op.handler is dispatch.refuse:
        return "refused"
    if op.handler is make_view and name in LOWERINGS:
        return "view"
    if op.handler is not None and op.handler not in GENERAL:
        return "handled"
    if name in LOWERINGS:
        return "lowered"
    if op.mutated and (str(op.functional) in LOWERINGS or op.functional in table):
        return "derived"
    if func._can_decompose():
        return "composite"
    if func in table and name not in cpu_only.NAMES:
        return "decomposed"
    return "sparse" if name.removeprefix("aten.") in KERNELS else "fallback"


def page() -> str:
    rows = [(str(func).removeprefix("aten."), served(func)) for func in overloads()]
    counts = Counter(how for _, how in rows)
    lines = [
        "# Every ATen operator, and how it is served",
        "",
        "Written by `scripts/list_ops.py`.",
        "",
    ]
    lines += percentages()
    lines += ["| served | overloads | meaning |", "|---|---|---|"]
    lines += [f"| {how} | {counts[how]} | {meaning} |" for how, meaning in MEANINGS.items()]
    lines += ["", f"## All {len(rows)} overloads", "", "| overload | served |", "|---|---|"]
    lines += [f"| `{name}` | {how} |" for name, how in rows]
    return "\n".join(lines) + "\n"


def percentages() -> list[str]:
    """The sweep's figures, as recorded; nothing where none was recorded."""
    if not SWEEP.exists():
        return []
    lines = [
        "torch's operator database (`tests/sweep.py`) against CPU torch, in every form it has:",
        "forward and backward, in-place, `out=` with a strided and with an empty tensor.",
        "Expected to fail, each with its reason in `tests/sweep_expected.py`: views as",
        "complex32. A call is one form of one sample. Where results differ by more than the",
        "tolerance of the dtype, double precision decides who rounds better, over inputs nearby:",
        "on a sample each, `fft.hfft2` and `nn.functional.conv3d` round worse than CPU torch.",
        "",
        "| dtype | operators | pass | share | expected to fail | other failures | through the CPU "
        "| samples each | calls | measured |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for dtype, got in json.loads(SWEEP.read_text()).items():
        failed = got["failed"]
        passed = got["operators"] - got["expected"] - len(failed)
        share = 100 * passed / got["operators"]
        cells = [dtype, got["operators"], passed, f"{share:.1f} %", got["expected"]]
        cells += [", ".join(f"`{name}`" for name in failed) or "none"]
        cells += [got["cpu"], got["samples"], got["calls"], got["date"]]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return [
        *lines,
        "",
        "The modules of torch's module database (114, every sample, training and evaluation,",
        "float32 and float64) and its optimizers (15, every configuration and form, three steps)",
        "agree without exception: `tests/xdist/test_module_sweep.py`, `test_optimizer_sweep.py`,",
        "whole with `-m long`.",
        "",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    text = page()
    if parser.parse_args().check:
        if not PAGE.exists() or PAGE.read_text() != text:
            print("docs/ops.md is out of date; run scripts/list_ops.py", file=sys.stderr)
            return 1
        return 0
    PAGE.write_text(text)
    print(f"wrote {PAGE.name}: {len(text.splitlines())} lines")
    return 0


if __name__ == "__main__":
    sys.exit(main())
