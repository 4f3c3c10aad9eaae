"""What the metrics count of recorded rows: `xla::NAME` of each operator, and the tensors it made.

Rows are counted when their tape runs (a program has its tally ready), or when somebody reads the
metrics before. The names are those of torch_xla's functions: where it has another function than the
operator is called, or one per view that copies, the name is that one's.
"""

import re
import time
from collections import Counter
from collections.abc import Iterable

from torch_xdist import metrics
from torch_xdist.core.trace.plans import Param, Plan
from torch_xdist.core.trace.trace import Row, Tape, rows_of

PREFIX = "xla::"
CREATED = "CreateXlaTensor"
# A tensor of the host that is made one of the device, as `.to` does; into one that is there; back.
TO_DEVICE: metrics.Tally = tuple(
    (PREFIX + name, 1) for name in ("_to_copy", "empty_symint", "_copy_from")
)
COPY_FROM: metrics.Tally = ((f"{PREFIX}_copy_from", 1),)
TO_CPU: metrics.Tally = ((f"{PREFIX}_to_cpu", 1),)

# Views: torch_xla records copies.
_COPIES = (
    "_conj alias as_strided detach diagonal permute select slice split split_with_sizes squeeze t"
    " transpose unbind unfold unsqueeze view_as_complex view_as_real"
)
# What writes through a view, where it is not the inverse view.
_SCATTERS = "as_strided diagonal select slice"
_INVERSE_VIEWS = {"squeeze": "unsqueeze", "unsqueeze": "squeeze"}
# Functions that write their first argument, or their `out`.
_WRITES = (
    "_amp_foreach_non_finite_check_and_unscale _amp_update_scale exponential fill index_fill"
    " index_put normal put random uniform zero"
)
# Rows of ours without a schema, by torch_xla's name of what they do.
_ROWS = {
    "all_gather": "AllGather",
    "all_reduce": "AllReduce",
    "all_to_all": "AllToAll",
    "cast": "_to_copy",
    "reduce_scatter": "ReduceScatter",
}
_NAMES = {
    **{name: f"{name}_copy" for name in _COPIES.split()},
    **{name: f"{name}_" for name in _WRITES.split()},
    **_ROWS,
    "_native_batch_norm_legit": "native_batch_norm",
    "_native_batch_norm_legit_functional": "native_batch_norm",
    "_native_batch_norm_legit_no_training": "native_batch_norm",
    "_reshape_alias": "view_copy_symint",
    "arange": "arange_out",
    "bernoulli.Tensor": "bernoulli_",
    "convolution": "convolution_overrideable",
    "convolution_backward": "convolution_backward_overrideable",
    "embedding": "embedding_symint",
    "empty": "empty_symint",
    "empty_strided": "empty_strided_symint",
    "expand": "expand_copy_symint",
    "eye": "eye_out",
    "linalg_cross": "cross",
    "normal_functional": "normal_",
    "rrelu_with_noise_functional": "rrelu_with_noise",
    "view": "view_copy_symint",
}


def counter_of(row_name: str) -> str:
    """The counter of a row: aten.add.Tensor -> xla::add, aten.slice.Tensor -> xla::slice_copy."""
    name = re.sub(r"^(write\.)?(aten\.|xla\.|xla::)?", "", row_name)
    base = re.split(r"[.(]", name, maxsplit=1)[0]
    if row_name.startswith("write."):
        if base in _SCATTERS.split():
            return f"{PREFIX}{base}_scatter"
        base = _INVERSE_VIEWS.get(base, base)
    return PREFIX + (_NAMES.get(name) or _NAMES.get(base, base))


def tally_of(rows: Iterable[Row]) -> metrics.Tally:
    """What rows count: their operators, and the tensors that were made."""
    counts: Counter[str] = Counter()
    for plan, times in Counter(row[0] for row in rows).items():
        # An operator of a library has the library's name before its own.
        name = plan.name if plan.op is None else plan.name.partition(".")[2]
        counts[counter_of(name)] += times
        counts[CREATED] += times * _made(plan)
    return tuple((name, n) for name, n in counts.items() if n)


def _made(plan: Plan) -> int:
    """How many tensors a row makes: its results, and numbers that torch takes for tensors."""
    results = sum(type_ is not None for type_ in plan.types)
    func = plan.op.functional if plan.op is not None else None
    if func is None:
        return results
    named = dict(zip((a.name for a in func._schema.arguments), plan.args)) | plan.kwargs
    tensors = (named.get(a.name) for a in func._schema.arguments if str(a.type) == "Tensor")
    return results + sum(given is not None and not isinstance(given, Param) for given in tensors)


def count_rows(tape: Tape) -> None:
    """Count the rows that came onto a tape since the last time."""
    entries = tape.entries[tape.counted :]
    tape.counted += len(entries)
    rows = [row for _, row in rows_of(entries)]
    since_s, tape.since_s = tape.since_s, time.perf_counter()
    if rows:
        metrics.note(tally_of(rows), ("LazyTracing", tape.since_s - since_s, len(rows)))
