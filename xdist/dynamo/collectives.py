"""Collectives by torch_xla's names inside captured graphs.

dynamo does not look into this package's code, so at a collective it would end one graph and begin
another. It writes the call into its graph instead; AOT autograd then finds the operator in it.
"""

from types import ModuleType

from torch_xdist.ranks import autograd_collectives, collective_ops
from torch_xdist.releases import late_imports

_IN_GRAPHS = (
    collective_ops.all_gather,
    collective_ops.all_reduce,
    collective_ops.all_to_all,
    collective_ops.collective_permute,
    collective_ops.reduce_scatter,
    autograd_collectives.all_gather,
    autograd_collectives.all_reduce,
)


def register() -> None:
    """Tell dynamo, now or when somebody imports it."""
    late_imports.when_imported("torch._dynamo", _allow)


def _allow(dynamo: ModuleType) -> None:
    dynamo.allow_in_graph(list(_IN_GRAPHS))
