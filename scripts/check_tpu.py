"""torch's operators compiled by the TPU compiler, on any machine: which compile, which fall back.

    scripts/check_tpu [--topology v5e:2x4] [--dtype float32] [--match REGEX] [--shard 0/4]
                      [--limit-s 120] [--json FILE] [--what operators|models|collectives] [--all]

The first sample of each operator, forward and backward, as the device records it for that topology.
A line is printed for each that does not compile or falls back to the CPU, then the counts; the file
gets everything. `models` are training steps of eleven families on 1, 4, 8 and 256 chips, and
`collectives` all of them over v5e:16x16, v5p:4x4x4 and two slices; what each becomes is printed.
`--all` is these, and the operators in five dtypes. The exit code is 1 where the compiler's process
was aborted, or one was refused.
"""

import argparse
import itertools
import json
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from sweep import full_name, inputs_of, operators
from sweep_forms import forms_of, on_device
from tpu_parts import collectives, models

from torch_xdist.ahead.compiler import Compiler
from torch_xdist.ahead.sweep import Found, tried
from torch_xdist.ahead.topology import Topology, devices, why_missing
from torch_xdist.core.devices import aim

_FINE = ("ok", "falls back")
DTYPES = ("float32", "bfloat16", "int32", "int64", "bool")


def found_of(op: Any, dtype: torch.dtype, topology: Topology, compiler: Compiler) -> Found | None:
    """What becomes of an operator's first sample; None where it has none."""
    torch.manual_seed(0)
    backward = dtype in op.supported_backward_dtypes("cpu") and op.supports_autograd
    made = op.sample_inputs("cpu", dtype, requires_grad=backward)
    samples = list(itertools.islice(made, 1))
    if not samples:
        return None
    sample = samples[0]
    form, *_ = forms_of(op, sample)

    def call(operands: Any) -> Any:
        return form(op, operands, [], sample.output_process_fn_grad)

    return tried(full_name(op), lambda: on_device(op, inputs_of(sample)), call, topology, compiler)


def tell(found: Found) -> None:
    """One line of the table, where there is something to tell."""
    if found.word == "ok":
        return
    words = found.verdict.words.splitlines()[:1] or [", ".join(found.fallbacks)]
    print(f"{found.name:40} {found.word:12} {words[0][:160]}", flush=True)


def told(found: Found) -> dict[str, Any]:
    """For the JSON file: all but the program."""
    verdict = found.verdict
    return {
        "name": found.name,
        "outcome": found.word,
        "words": verdict.words,
        "fallbacks": found.fallbacks,
        "seconds": round(verdict.seconds, 3),
        "bytes": verdict.bytes,
        "flops": verdict.flops,
        "wide": verdict.wide,
        "wide_inside": verdict.wide_inside,
        "collectives": verdict.exchanges,
        "across_slices": verdict.across_slices,
        "donated": verdict.donated,
        "aliases": verdict.aliases,
    }


def tell_step(found: Found) -> None:
    """One line of a model's step or of a collective, with what it compiled to."""
    verdict = found.verdict
    facts = [f"{one['count']} {one['kind']}{' async' * one['async']}" for one in verdict.exchanges]
    facts += [f"{count} {kind} between slices" for kind, count in verdict.across_slices.items()]
    if verdict.donated:
        facts.append(f"{verdict.aliases} of {verdict.donated} arguments donated")
    facts += [f"{count} arrays of f64" for kind, count in verdict.wide.items() if kind == "f64"]
    facts += [f"{name} on the CPU" for name in found.fallbacks]
    words = verdict.words.splitlines()[:1] or [", ".join(facts)]
    print(f"{found.name:40} {found.word:12} {words[0][:160]}", flush=True)


def of_operators(options: argparse.Namespace, dtype: str) -> list[Found]:
    """Those of `op_db` in a dtype."""
    topology = Topology(options.topology)
    all_found = []
    with Compiler(options.limit_s) as compiler, aim.at(devices(topology)):
        for op in operators(getattr(torch, dtype), options.match, options.shard):
            found = found_of(op, getattr(torch, dtype), topology, compiler)
            if found is not None:
                all_found.append(found)
                tell(found)
    wide = sum(bool(found.verdict.wide_inside) for found in all_found)
    more = f"; {wide} compute with arrays of 64-bit integers"
    print(f"{topology}, {dtype}: {counts_of(all_found)}{more}")
    return all_found


def of_steps(what: str, swept: Iterable[Found]) -> list[Found]:
    """Models or collectives."""
    all_found = []
    for found in swept:
        all_found.append(found)
        tell_step(found)
    print(f"{what}: {counts_of(all_found)}")
    return all_found


def counts_of(all_found: Sequence[Found]) -> str:
    counts = Counter(found.word for found in all_found)
    return f"{len(all_found)}, {', '.join(f'{n} {word}' for word, n in counts.most_common())}"


def main() -> int:
    warnings.filterwarnings("ignore")
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--topology", default="v5e:2x4")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--match", default=".")
    parser.add_argument("--shard", default="0/1")
    parser.add_argument("--limit-s", type=float, default=120.0, help="for one program")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--what", choices=("operators", "models", "collectives"))
    parser.add_argument("--all", action="store_true", help="all of these, and five dtypes")
    options = parser.parse_args()
    missing = why_missing()
    if missing:
        print(f"check_tpu: {missing}", file=sys.stderr)
        return 2
    started = time.perf_counter()
    parts = ["operators", "models", "collectives"] if options.all else [options.what or "operators"]
    all_found: list[Found] = []
    if "operators" in parts:
        for dtype in DTYPES if options.all else [options.dtype]:
            all_found += of_operators(options, dtype)
    if "models" in parts:
        all_found += of_steps("models", models.sweep("", options.limit_s))
    if "collectives" in parts:
        all_found += of_steps("collectives", collectives.sweep("", options.limit_s))
    print(f"{time.perf_counter() - started:.0f} s")
    if options.json is not None:
        options.json.write_text(json.dumps([*map(told, all_found)], indent=1) + "\n")
    return int(any(found.word not in _FINE for found in all_found))


if __name__ == "__main__":
    sys.exit(main())
