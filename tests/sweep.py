"""torch's operator database on the device against CPU torch: forward, backward, in-place, out=.

Run as a script it sweeps whole dtypes and prints a line per operator:

    python tests/sweep.py --dtype float32 --samples 3 [--match REGEX] [--shard 0/4]
"""

import argparse
import datetime
import json
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

import torch_xdist.core.backend  # noqa: F401
from torch_xdist import metrics

DEVICE = "xla"


@dataclass
class Outcome:
    """What became of one operator in one dtype: what failed, and what the CPU had to do."""

    samples: int = 0
    failures: list[str] = field(default_factory=list)
    fallbacks: Counter[str] = field(default_factory=Counter)


def to_device(value: Any) -> Any:
    """A nested sample on the device; leaves that want a gradient still do."""

    def move(t: Any) -> Any:
        if not isinstance(t, torch.Tensor):
            return torch.device(DEVICE) if isinstance(t, torch.device) else t
        moved = t.detach().to(DEVICE)
        return moved.requires_grad_(t.requires_grad)

    return pytree.tree_map(move, value)


def tensors_of(value: Any) -> list[torch.Tensor]:
    return [t for t in pytree.tree_leaves(value) if isinstance(t, torch.Tensor)]


def compare(expected: Any, got: Any, where: str) -> None:
    """Values, dtypes and shapes at the default tolerances of the dtype."""
    one, other = tensors_of(expected), tensors_of(got)
    if len(one) != len(other):
        raise AssertionError(f"{where}: {len(other)} results instead of {len(one)}")
    for index, (e, g) in enumerate(zip(one, other)):
        host = g.detach().cpu()
        if e.dtype is not host.dtype:
            raise AssertionError(f"{where} {index}: dtype {host.dtype} instead of {e.dtype}")
        torch.testing.assert_close(
            host,
            e.detach().resolve_conj().resolve_neg(),
            equal_nan=True,
            msg=lambda m, i=index: f"{where} {i}: {m}",
        )


def as_near_to_exact(op: Any, inputs: Any, expected: Any, got: Any) -> bool:
    """Whether double precision is nearer to ours than to CPU torch: both only round differently.

    Only for single precision, and only where shapes and dtypes agree.
    """
    one, other = tensors_of(expected), tensors_of(got)
    if [(t.shape, t.dtype) for t in one] != [(t.shape, t.dtype) for t in other]:
        return False
    if not {t.dtype for t in tensors_of(inputs)} & set(_DOUBLE):
        return False
    exact_inputs = pytree.tree_map(_doubled, inputs)
    result = op.op(exact_inputs[0], *exact_inputs[1], **exact_inputs[2])
    exact = tensors_of((result, gradients(result, exact_inputs)))
    return len(exact) == len(one) and all(
        _is_close(e, g) or _error(g.detach().cpu(), x) <= 1.1 * _error(e.detach(), x)
        for e, g, x in zip(one, other, exact)
    )


def _is_close(expected: torch.Tensor, got: torch.Tensor) -> bool:
    try:
        compare(expected, got, "")
    except AssertionError:
        return False
    return True


_DOUBLE = {torch.float32: torch.float64, torch.complex64: torch.complex128}


def _doubled(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or value.dtype not in _DOUBLE:
        return _DOUBLE.get(value, value) if isinstance(value, torch.dtype) else value
    return value.detach().to(_DOUBLE[value.dtype]).requires_grad_(value.requires_grad)


def _error(value: torch.Tensor, exact: torch.Tensor) -> float:
    if not (value.is_floating_point() or value.is_complex()):
        return float((value != exact.detach()).sum())
    far = (value.detach().to(exact.dtype) - exact.detach()).abs()
    return float(far.nan_to_num(0.0).max()) if far.numel() else 0.0


def gradients(result: Any, inputs: Any) -> list[Any] | None:
    """Gradients of the sum over every differentiable result, for every leaf that wants one."""
    outs = [t for t in tensors_of(result) if t.requires_grad]
    leaves = [t for t in tensors_of(inputs) if t.requires_grad]
    if not outs or not leaves:
        return None
    seeds = [torch.ones_like(t) for t in outs]
    return list(torch.autograd.grad(outs, leaves, seeds, allow_unused=True))


def check_sample(op: Any, sample: Any, outcome: Outcome, *, backward: bool) -> None:
    """One sample on both devices; a failure of CPU torch itself is not ours."""
    inputs = (sample.input, sample.args, sample.kwargs)
    try:
        expected = op.op(sample.input, *sample.args, **sample.kwargs)
        wanted = gradients(expected, inputs) if backward else None
    except Exception:
        return
    outcome.samples += 1
    try:
        # These take sizes as tensors, which torch wants on the CPU whatever the device.
        mine = (
            (to_device(sample.input), *inputs[1:])
            if op.name == "tensor_split"
            else to_device(inputs)
        )
        got = op.op(mine[0], *mine[1], **mine[2])
        got_gradients = gradients(got, mine) if wanted is not None else None
        try:
            compare((expected, wanted), (got, got_gradients), "result")
        except AssertionError:
            if not as_near_to_exact(op, inputs, (expected, wanted), (got, got_gradients)):
                raise
    except Exception as error:
        text = str(error).strip().replace("\n", " | ")[:400]
        outcome.failures.append(f"{type(error).__name__}: {text}")


def random_op(op: Any) -> bool:
    """Operators whose values cannot be compared: they draw random numbers or leave memory as is."""
    return op.name in RANDOM or op.name.startswith(("empty", "new_empty"))


RANDOM = frozenset(
    [
        "bernoulli",
        "cauchy",
        "exponential",
        "geometric",
        "log_normal",
        "normal",
        "multinomial",
        "uniform",
        "randn",
        "rand",
        "randint",
        "rand_like",
        "randn_like",
        "randint_like",
        "nn.functional.dropout",
        "nn.functional.dropout2d",
        "nn.functional.dropout3d",
        "nn.functional.alpha_dropout",
        "nn.functional.feature_alpha_dropout",
        "nn.functional.rrelu",
        "nn.functional.fractional_max_pool2d",
        "nn.functional.fractional_max_pool3d",
        "nn.functional.multi_head_attention_forward",
        "pca_lowrank",
        "svd_lowrank",
        "nn.functional.feature_alpha_dropout",
        "torch.ops.aten._efficient_attention_forward",
    ]
)


def check(op: Any, dtype: torch.dtype, samples: int, *, first: int = 0) -> Outcome:
    """Every sample (at most `samples`, from `first`) of one operator in one dtype."""
    outcome = Outcome()
    backward = dtype in op.supported_backward_dtypes("cpu") and op.supports_autograd
    before = fallback_counts()
    torch.manual_seed(0)
    for index, sample in enumerate(op.sample_inputs("cpu", dtype, requires_grad=backward)):
        if index < first:
            continue
        if index >= first + samples:
            break
        check_sample(op, sample, outcome, backward=backward)
    outcome.fallbacks = fallback_counts() - before
    return outcome


def fallback_counts() -> Counter[str]:
    return Counter(
        {
            n: metrics.counter_value(n) or 0
            for n in metrics.counter_names()
            if n.startswith("aten::")
        }
    )


def full_name(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def operators(dtype: torch.dtype, match: str = ".", shard: str = "0/1") -> Iterator[Any]:
    """The operators CPU torch supports in a dtype, without those whose values are random."""
    index, of = map(int, shard.split("/"))
    for number, op in enumerate(op_db):
        chosen = number % of == index and re.search(match, full_name(op))
        if chosen and dtype in op.supported_dtypes("cpu") and not random_op(op):
            yield op


def main() -> None:
    warnings.filterwarnings("ignore")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--match", default=".")
    parser.add_argument("--shard", default="0/1")
    parser.add_argument("--record", action="store_true", help="write docs/ops_sweep.json")
    options = parser.parse_args()
    passed = total = served_by_cpu = 0
    for op in operators(getattr(torch, options.dtype), options.match, options.shard):
        started = time.perf_counter()
        outcome = check(op, getattr(torch, options.dtype), options.samples)
        took = time.perf_counter() - started
        total += 1
        passed += not outcome.failures
        served_by_cpu += bool(outcome.fallbacks)
        verdict = "FAIL" if outcome.failures else "ok"
        print(
            f"{verdict} {full_name(op)} {outcome.samples} {took:.1f}s",
            dict(outcome.fallbacks) or "",
        )
        for failure in outcome.failures[:2]:
            print("    ", failure)
        sys.stdout.flush()
    print(f"{options.dtype}: {passed} of {total} passed, {served_by_cpu} used the CPU")
    if options.record:
        record(options, passed, total, served_by_cpu)


def record(options: argparse.Namespace, passed: int, total: int, cpu: int) -> None:
    """Enter a whole sweep's figures into docs/ops_sweep.json."""
    path = Path(__file__).resolve().parent.parent / "docs" / "ops_sweep.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    known[options.dtype] = {
        "operators": total,
        "passed": passed,
        "cpu": cpu,
        "samples": options.samples,
        "date": datetime.date.today().isoformat(),
    }
    path.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
