"""torch's operator database on the device against CPU torch: forward, backward, in-place, out=.

Run as a script it sweeps whole dtypes and prints a line per operator:

    python tests/sweep.py --dtype float32 --samples 3 [--match REGEX] [--shard 0/4] [--record]

`--samples 0` takes all samples. Several samples are recorded before the first is read, so that
they compile as one program.
"""

import argparse
import datetime
import itertools
import json
import os
import re
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jaxlib.version
import torch
from sweep_compare import (
    Distances,
    agrees_up_to_ties,
    as_near,
    as_near_on_average,
    compare,
    compare_kinds,
    distances,
)
from sweep_expected import reason
from sweep_forms import (
    Form,
    Inputs,
    call_only,
    can_be_exact,
    forms_of,
    in_double,
    nearby,
    on_cpu,
    on_device,
    out_resized,
    out_strided,
    tensors_of,
)
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import SampleInput

import torch_xdist.core.torch_side.registration  # noqa: F401
from torch_xdist import metrics

# Samples of one operator that are recorded before the first result is read.
AT_ONCE = 8
# Inputs beside a sample's own that are tried where ours round worse than CPU torch.
DRAWS = 48
# A whole sweep compiles thousands of programs that run once, so XLA spends little on each; what
# fails is tried again as users compile it.
QUICK = [
    "--xla_backend_optimization_level=0",
    "--xla_cpu_parallel_codegen_split_count=1",
]
# XLA ends the process over a flag that it does not know: this one left with jaxlib 0.11.
if jaxlib.version.__version_info__ < (0, 11):
    QUICK.append("--xla_cpu_use_fusion_emitters=false")


@dataclass
class Outcome:
    """What became of one operator in one dtype: what failed, and what the CPU had to do."""

    samples: int = 0
    calls: int = 0
    failures: list[str] = field(default_factory=list)
    fallbacks: Counter[str] = field(default_factory=Counter)


@dataclass
class Trial:
    """One form of an operator on one sample: CPU torch's results, and how to get ours."""

    op: Any
    form: Form
    sample: Any
    like: list[torch.Tensor]
    expected: Any
    written: list[int]  # the inputs that the form writes to
    got: Any = None
    error: Exception | None = None

    def run(self, inputs: Inputs) -> Any:
        """What the form returns, and the inputs it wrote to."""
        result = self.form(self.op, inputs, self.like, self.sample.output_process_fn_grad)
        given = tensors_of(inputs)
        return result, [given[i] for i in self.written]

    def record(self) -> None:
        """Call the form on the device, without reading anything where that can be helped."""
        try:
            self.got = self.run(on_device(self.op, inputs_of(self.sample)))
        except Exception as error:
            self.error = error

    def judge(self) -> str | None:
        """What is wrong with our results, if anything."""
        try:
            if self.error is not None:
                raise self.error
            if is_random(self.op, self.sample):
                compare_kinds(self.expected, self.got)
            else:
                compare(self.expected, self.got)
        except AssertionError as error:
            inputs = inputs_of(self.sample)
            if agrees_up_to_ties(self.op, inputs, self.expected[0], self.got[0]):
                return None
            return None if self.only_rounds(inputs) else self.words(error)
        except Exception as error:
            return self.words(error)
        return None

    def only_rounds(self, inputs: Inputs) -> bool:
        """Whether ours are as near to double precision as CPU torch's.

        Chance may favour one of them: then inputs nearby decide, on average.
        """
        found = self.distances(inputs)
        if found is None:
            return False
        if as_near(found, expected=self.expected, got=self.got):
            return True
        generator = torch.Generator().manual_seed(0)
        others = [self.moved(nearby(inputs, generator)) for _ in range(DRAWS)]
        draws = [None if t is None else t.distances(inputs_of(t.sample)) for t in others]
        return None not in draws and as_near_on_average([found, *draws])  # type: ignore[list-item]

    def distances(self, inputs: Inputs) -> Distances | None:
        """See `sweep_compare.distances`; None also where double precision cannot say."""
        if not can_be_exact(inputs):
            return None
        try:
            like = tensors_of(call_only(self.op, in_double(inputs), [], _as_it_is))
            exact = replace(self, like=like).run(in_double(inputs))
        except Exception:
            return None
        return distances(self.expected, self.got, exact)

    def moved(self, inputs: Inputs) -> "Trial | None":
        """The trial with other inputs, done; None where it fails."""
        sample = SampleInput(inputs[0], args=inputs[1], kwargs=inputs[2])
        sample.output_process_fn_grad = self.sample.output_process_fn_grad
        other = on_the_cpu(replace(self, sample=sample))
        if other is not None:
            other.record()
        return None if other is None or other.error is not None else other

    def words(self, error: Exception) -> str:
        text = str(error).strip().replace("\n", " | ")[:400]
        return f"{self.form.__name__}: {type(error).__name__}: {text}"


def _as_it_is(result: Any) -> Any:
    return result


def inputs_of(sample: Any) -> Inputs:
    return sample.input, sample.args, sample.kwargs


def trials_of(op: Any, sample: Any, forms: Sequence[Form]) -> list[Trial]:
    """A trial for each form CPU torch itself can run on a sample."""
    plain = on_the_cpu(Trial(op, call_only, sample, [], None, []))
    if plain is None:
        return []
    like = tensors_of(plain.expected)
    trials = [on_the_cpu(Trial(op, form, sample, like, None, [])) for form in forms]
    # Not every operator has a gradient for every sample, nor writes right into every out=.
    rest = [t for t in trials[1:] if t is not None and agrees_with_itself(t, plain)]
    return [trials[0] or plain, *rest]


def agrees_with_itself(trial: Trial, plain: Trial) -> bool:
    """Whether CPU torch's out= form gives what its plain call gives, dtypes apart."""
    if trial.form not in (out_strided, out_resized) or is_random(trial.op, trial.sample):
        return True
    results, *rest = trial.expected[0]
    written = all(rest[0]) if trial.form is out_strided else True
    pairs = zip(tensors_of(plain.expected[0]), tensors_of(results))
    return written and all(_same_numbers(e, g) for e, g in pairs)


def _same_numbers(plain: torch.Tensor, out: torch.Tensor) -> bool:
    same_shape = plain.shape == out.shape
    return same_shape and torch.allclose(plain.to(out.dtype), out, 1e-2, 1e-2, equal_nan=True)


def on_the_cpu(trial: Trial) -> Trial | None:
    """The trial with CPU torch's results; None where CPU torch fails."""
    inputs = on_cpu(inputs_of(trial.sample))
    given = tensors_of(inputs)
    before = [t._version for t in given]
    try:
        expected, _ = trial.run(inputs)
    except Exception:
        return None
    written = [i for i, t in enumerate(given) if t._version != before[i]]
    return replace(trial, expected=(expected, [given[i] for i in written]), written=written)


def check(op: Any, dtype: torch.dtype, samples: int, *, every_form: bool = True) -> Outcome:
    """Every sample (at most `samples`, 0 for all) of one operator in one dtype."""
    outcome = Outcome()
    backward = dtype in op.supported_backward_dtypes("cpu") and op.supports_autograd
    before = fallback_counts()
    torch.manual_seed(0)
    made = op.sample_inputs("cpu", dtype, requires_grad=backward)
    made = itertools.islice(made, samples or None)
    while some := list(itertools.islice(made, AT_ONCE)):
        check_samples(op, some, outcome, every_form)
    outcome.fallbacks = fallback_counts() - before
    return outcome


def check_samples(op: Any, samples: Iterable[Any], outcome: Outcome, every_form: bool) -> None:
    trials = []
    for sample in samples:
        forms = forms_of(op, sample)
        of_sample = trials_of(op, sample, forms if every_form else forms[:1])
        outcome.samples += bool(of_sample)
        trials += of_sample
    outcome.calls += len(trials)
    for trial in trials:
        trial.record()
    outcome.failures += [wrong for wrong in map(Trial.judge, trials) if wrong is not None]


def is_random(op: Any, sample: Any) -> bool:
    """Whether values cannot be compared: random numbers are drawn, or memory is left as it is."""
    drops = sample.kwargs.get("dropout_p", 0) > 0
    return drops or op.name in RANDOM or op.name.startswith(("empty", "new_empty"))


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


def fallback_counts() -> Counter[str]:
    return Counter({n: metrics.counter_value(n) or 0 for n in metrics.missing_lowerings()})


def full_name(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def operators(dtype: torch.dtype, match: str = ".", shard: str = "0/1") -> Iterator[Any]:
    """The operators CPU torch supports in a dtype."""
    index, of = map(int, shard.split("/"))
    for number, op in enumerate(op_db):
        chosen = number % of == index and re.search(match, full_name(op))
        if chosen and dtype in op.supported_dtypes("cpu"):
            yield op


def main() -> None:
    warnings.filterwarnings("ignore")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--match", default=".")
    parser.add_argument("--shard", default="0/1")
    parser.add_argument("--record", action="store_true", help="write docs/ops_sweep.json")
    parser.add_argument(
        "--for-users", action="store_true", help="compile as for users from the start"
    )
    options = parser.parse_args()
    if not options.for_users:
        os.environ["XLA_FLAGS"] = " ".join([*QUICK, os.environ.get("XLA_FLAGS", "")])
    outcomes: dict[str, Outcome] = {}
    for op in operators(getattr(torch, options.dtype), options.match, options.shard):
        started = time.perf_counter()
        outcome = check(op, getattr(torch, options.dtype), options.samples)
        outcomes[full_name(op)] = outcome
        tell(full_name(op), outcome, time.perf_counter() - started)
    for name in passing_as_compiled_for_users(options, outcomes):
        outcomes[name].failures.clear()
    known = figures(options, {n: o for n, o in outcomes.items() if o.samples})
    print(f"{options.dtype}: {known}")
    if options.record:
        record(options.dtype, known)


def passing_as_compiled_for_users(
    options: argparse.Namespace, outcomes: dict[str, Outcome]
) -> list[str]:
    """Which failed operators pass without QUICK, whose code rounds differently."""
    failed = [name for name, outcome in outcomes.items() if outcome.failures]
    if not failed or options.for_users:
        return []
    names = "|".join(re.escape(name) for name in failed)
    command = [sys.executable, __file__, "--dtype", options.dtype, "--match", f"^({names})$"]
    ran = subprocess.run(
        [*command, "--samples", str(options.samples), "--for-users"],
        env=_without_quick_flags(),
        capture_output=True,
        text=True,
        check=False,
    )
    print(*(f"compiled for users: {line}\n" for line in ran.stdout.splitlines()), sep="", end="")
    return re.findall(r"^ok (\S+)", ran.stdout, re.M)


def _without_quick_flags() -> dict[str, str]:
    flags = [word for word in os.environ["XLA_FLAGS"].split() if word not in QUICK]
    return {**os.environ, "XLA_FLAGS": " ".join(flags)}


def tell(name: str, outcome: Outcome, took_s: float) -> None:
    verdict = "FAIL" if outcome.failures else "ok" if outcome.samples else "none"
    counts = f"{outcome.samples} samples {outcome.calls} calls {took_s:.1f}s"
    print(verdict, name, counts, dict(outcome.fallbacks) or "")
    for failure in outcome.failures[:3]:
        print("    ", failure)
    sys.stdout.flush()


def figures(options: argparse.Namespace, outcomes: dict[str, Outcome]) -> dict[str, Any]:
    """What docs/ops_sweep.json says of a dtype."""
    dtype = getattr(torch, options.dtype)
    failed = [name for name, outcome in outcomes.items() if outcome.failures]
    return {
        "operators": len(outcomes),
        "expected": sum(reason(name, dtype) is not None for name in failed),
        "failed": [name for name in failed if reason(name, dtype) is None],
        "cpu": sum(bool(outcome.fallbacks) for outcome in outcomes.values()),
        "samples": options.samples or "all",
        "calls": sum(outcome.calls for outcome in outcomes.values()),
        "date": datetime.date.today().isoformat(),
    }


def record(dtype: str, known: dict[str, Any]) -> None:
    """Enter a whole sweep's figures into docs/ops_sweep.json."""
    path = Path(__file__).resolve().parent.parent / "docs" / "ops_sweep.json"
    entries = json.loads(path.read_text()) if path.exists() else {}
    entries[dtype] = known
    path.write_text(json.dumps(entries, indent=1) + "\n")


if __name__ == "__main__":
    main()
