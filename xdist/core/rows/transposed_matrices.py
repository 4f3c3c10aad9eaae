"""Products of a transposed matrix and a vector read the matrix as it lies.

So torch makes the gradient of `mv` by its vector, and spectral norms iterate. XLA takes such a
transpose into products of matrices only: 1024 x 1024 take 1.9 ms on a CPU turned around first, 0.09
as they lie.
"""

from collections.abc import Sequence

from torch_xdist.core.rows.joined_rows import Found, Rows, joined
from torch_xdist.core.trace.plans import SINGLE, Plan
from torch_xdist.core.trace.trace import Entry, Row
from torch_xdist.ops.matmul import transposed_mv

_PRODUCT = "aten.mv.default"


def as_they_lie(entries: Sequence[Entry]) -> Sequence[Entry]:
    """The rows, of which those products read what was transposed."""
    return joined(entries, _look, _by_columns)


def _look(rows: Rows, row: Row) -> Found | None:
    turned = rows.get(row[1]) if row[0].name == _PRODUCT else None
    if turned is None or not _transposes(turned[0]):
        return None
    return (turned[0], row[0]), (turned[1], row[2])


def _transposes(plan: Plan) -> bool:
    """Whether a row turns a matrix around."""
    match plan.name:
        case "aten.t.default":
            return True
        case "aten.transpose.int":
            return len({dim % 2 for dim in plan.args[1:]}) == 2
        case "aten.permute.default":
            return [dim % 2 for dim in plan.args[1]] == [1, 0]
    return False


def _by_columns(turned: Plan, product: Plan) -> Plan:
    return Plan(
        f"{product.name} of columns",
        None,
        product.args,
        product.kwargs,
        (turned.operand_types[0], product.operand_types[1]),
        product.types,
        SINGLE,
        lowering=transposed_mv,
    )
