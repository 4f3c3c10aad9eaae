"""Rewriting graphs whose inputs have open sizes, so that no shape in them is one of the example.

Views and expansions to such a size become `torch.ops.xla.dynamic_view` and `dynamic_expand`, which
take the size from another tensor. What would record them below torch's operators (select, split,
unsqueeze, embedding) is written with views and slices first.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch.fx import Graph, GraphModule, Node, subgraph_rewriter

from torch_xdist.errors import ArgumentError

aten = torch.ops.aten
_VIEWS = (
    aten.reshape,
    aten.reshape.default,
    aten.view,
    aten.view.default,
    aten._unsafe_view,
    aten._unsafe_view.default,
)
_WHOLE = torch.iinfo(torch.int64).max


def wrap_func_as_nn_module(f: Callable[..., Any]) -> torch.nn.Module:
    """A module, for inference, that calls a function."""

    class M(torch.nn.Module):
        def forward(self, *args: Any) -> Any:
            return f(*args)

    return M().eval()


def call_function(
    graph: Graph,
    target: Callable[..., Any],
    args: tuple[Any, ...] | None = None,
    kwargs: dict[str, Any] | None = None,
) -> Node:
    """A new node of a graph, with what torch's fake tensors say of its result."""
    node = graph.call_function(target, args, kwargs)
    given, named = torch.fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    # Symbols are only kept by the decompositions torch writes in Python.
    with enable_python_dispatcher():
        node.meta["val"] = target(*given, **named)
    return node


def _calls(gm: GraphModule, *targets: Any) -> list[Any]:
    """The nodes that call one of these operators."""
    return [n for n in gm.graph.nodes if n.op == "call_function" and n.target in targets]


def _open_dims(node: Any) -> list[int]:
    """The dims of a node's result whose sizes are open.

    Raises ArgumentError where there are several.
    """
    shape = node.meta["val"].shape
    found = [dim for dim, size in enumerate(shape) if not isinstance(size, int)]
    if len(found) > 1:
        raise ArgumentError(
            f"export with open sizes: {node.name} has shape {tuple(shape)}, where {len(found)} are"
            " open; at most one dim of a tensor may be"
        )
    return found


def _size(graph: Graph, node: Node, dim: int) -> Any:
    """A size of a node's result: the number, or a node that asks for it."""
    size = node.meta["val"].shape[dim]
    return size if isinstance(size, int) else call_function(graph, aten.sym_size.int, (node, dim))


def decompose_dynamic_shape_select(gm: GraphModule) -> None:
    """`select` of a tensor with an open size: a slice, and a view without the dim."""
    for node in _calls(gm, aten.select.int):
        source, dim, index = node.args
        open_dims = _open_dims(source)
        if not open_dims:
            continue
        rank = len(source.meta["val"].shape)
        dim %= rank
        if dim in open_dims:
            raise ArgumentError(
                f"export with open sizes: {node.name} selects along dim {dim}, whose size is open;"
                " select along another one"
            )
        with gm.graph.inserting_before(node):
            end = _WHOLE if index == -1 else index + 1
            part = call_function(gm.graph, aten.slice.Tensor, (source, dim, index, end, 1))
            sizes = [_size(gm.graph, source, d) for d in range(rank) if d != dim]
            view = call_function(gm.graph, aten.view.default, (part, sizes))
        node.replace_all_uses_with(view)
        gm.graph.erase_node(node)


def decompose_split_with_sizes(gm: GraphModule) -> None:
    """`split_with_sizes` of a tensor with an open size: slices."""
    for node in _calls(gm, aten.split_with_sizes.default):
        source, sizes, *rest = node.args
        open_dims = _open_dims(source)
        if not open_dims:
            continue
        dim = (rest[0] if rest else 0) % len(source.meta["val"].shape)
        if dim in open_dims:
            raise ArgumentError(
                f"export with open sizes: {node.name} splits along dim {dim}, whose size is open;"
                " split along another one"
            )
        starts = [sum(sizes[:place]) for place in range(len(sizes))]
        with gm.graph.inserting_before(node):
            parts = [
                call_function(gm.graph, aten.slice.Tensor, (source, dim, start, start + size))
                for start, size in zip(starts, sizes)
            ]
        for user in list(node.users):
            user.replace_all_uses_with(parts[user.args[1]])


def flatten_embedding_indices_tensor(gm: GraphModule) -> None:
    """`embedding` of indices with an open size: of a row of them, and a view of the result."""
    for node in _calls(gm, aten.embedding.default):
        weight, indices, *rest = node.args
        if not _open_dims(indices):
            continue
        shape = indices.meta["val"].shape
        known = [size for size in shape if isinstance(size, int)]
        with gm.graph.inserting_before(node):
            sizes = [_size(gm.graph, indices, dim) for dim in range(len(shape))]
            (open_size,) = (size for size in sizes if isinstance(size, Node))
            count: Any = open_size
            for size in known:
                count = call_function(gm.graph, operator.mul, (count, size))
            flat = call_function(gm.graph, aten.reshape, (indices, [count]))
            rows = call_function(gm.graph, node.target, (weight, flat, *rest))
            width = weight.meta["val"].shape[-1]
            found = call_function(gm.graph, aten.reshape, (rows, [*sizes, width]))
        node.replace_all_uses_with(found)
        gm.graph.erase_node(node)


def is_no_op_slice(n: Any) -> bool:
    """Whether a slice is of everything."""
    start, end, step = [*n.args[2:], *(None,) * 3][:3]
    return start in (0, None) and end in (_WHOLE, None) and step in (1, None)


def remove_no_op_slice(gm: GraphModule) -> None:
    """Slices of everything: the tensor itself."""
    for node in _calls(gm, aten.slice.Tensor):
        if is_no_op_slice(node):
            node.replace_all_uses_with(node.args[0])
            gm.graph.erase_node(node)


def native_layer_norm_impl(
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor,
    bias: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    """Layer norm over the last dim, in simple operators."""
    return _normalized(input, eps) * weight + bias


def native_group_norm_impl(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    N: int,
    C: int,
    HxW: int,
    group: int,
    eps: float,
) -> torch.Tensor:
    """Group norm with one channel in each group of `[n, c, l]`, in simple operators."""
    return _normalized(input, eps) * weight.unsqueeze(1) + bias.unsqueeze(1)


def _normalized(input: torch.Tensor, eps: float) -> torch.Tensor:
    """Mean 0 and variance 1 along the last dim."""
    mean = torch.mean(input, -1, keepdim=True)
    rstd = torch.rsqrt(torch.var(input, -1, keepdim=True, correction=0) + eps)
    return (input + mean * -1) * rstd


def native_layer_norm_pattern(x: Any, dim: Any, weight: Any, bias: Any, eps: Any) -> Any:
    """What is looked for: the first result of `native_layer_norm`."""
    return aten.native_layer_norm.default(x, dim, weight, bias, eps)[0]


def native_group_norm_pattern(
    x: Any, weight: Any, bias: Any, N: Any, C: Any, HxW: Any, group: Any, eps: Any
) -> Any:
    """What is looked for: the first result of `native_group_norm`."""
    return aten.native_group_norm.default(x, weight, bias, N, C, HxW, group, eps)[0]


def decompose_dynamic_native_layer_norm(gm: GraphModule) -> None:
    """`native_layer_norm` with a weight and a bias over the last dim alone: simple operators."""
    # A result that nobody uses would keep the pattern from being found.
    gm.graph.eliminate_dead_code()
    filters: Any = [_is_of_last_dim]
    subgraph_rewriter.replace_pattern_with_filters(
        gm, native_layer_norm_pattern, native_layer_norm_impl, filters, ignore_literals=False
    )


def _is_of_last_dim(match: Any, graph: Any, pattern: Any) -> bool:
    _, sizes, *affine, _ = _matched(match, aten.native_layer_norm.default)
    return len(sizes) == 1 and None not in affine


def _is_of_one_channel(match: Any, graph: Any, pattern: Any) -> bool:
    x, *affine, _, channels, _, groups, _ = _matched(match, aten.native_group_norm.default)
    return x.meta["val"].dim() == 3 and channels == groups and None not in affine


def _matched(match: Any, target: Any) -> Any:
    """The arguments of the call of an operator that a pattern was found by."""
    return next(n for n in match.nodes_map.values() if getattr(n, "target", None) is target).args


def decompose_dynamic_native_group_norm(gm: GraphModule) -> None:
    """`native_group_norm` with one channel in each group: simple operators."""
    # A result that nobody uses would keep the pattern from being found.
    gm.graph.eliminate_dead_code()
    filters: Any = [_is_of_one_channel]
    subgraph_rewriter.replace_pattern_with_filters(
        gm, native_group_norm_pattern, native_group_norm_impl, filters, ignore_literals=True
    )


def dynamic_unsqueeze_to_view(gm: GraphModule) -> None:
    """`unsqueeze` of a tensor with an open size: a view."""
    for node in _calls(gm, aten.unsqueeze.default):
        source, dim = node.args
        if not _open_dims(source):
            continue
        rank = len(source.meta["val"].shape)
        dim %= rank + 1
        with gm.graph.inserting_before(node):
            sizes = [_size(gm.graph, source, d) for d in range(rank)]
            shape = [*sizes[:dim], 1, *sizes[dim:]]
            view = call_function(gm.graph, aten.view.default, (source, shape))
        node.replace_all_uses_with(view)
        gm.graph.erase_node(node)


def replace_dynamic_expand_with_xla_op(gm: GraphModule) -> None:
    """`expand` to an open size: `xla.dynamic_expand`, which takes it from another tensor."""
    for node in _calls(gm, aten.expand.default):
        found = _source_of_size(node)
        if found is None:
            continue
        source, source_dim, dim, scale = found
        if scale != 1:
            raise ArgumentError(
                f"export with open sizes: {node.name} expands to {scale} times a size; expand to"
                " the size of another tensor"
            )
        node.args = (*node.args, source, source_dim, dim)
        node.target = torch.ops.xla.dynamic_expand


def replace_dynamic_view_with_xla_op(gm: GraphModule) -> None:
    """A view with an open size: `xla.dynamic_view`, which takes it from another tensor."""
    for node in _calls(gm, *_VIEWS):
        found = _source_of_size(node)
        if found is not None:
            source, source_dim, dim, scale = found
            node.args = (*node.args, source, source_dim, dim, scale)
            node.target = torch.ops.xla.dynamic_view


def _source_of_size(node: Any) -> tuple[Node, int, int, int] | None:
    """Where the open size among a node's sizes comes from: (tensor, its dim, our dim, factor).

    None where no size is open. Raises ArgumentError where several are, or one is another term.
    """
    found: list[tuple[int, Any]] = [
        (dim, size) for dim, size in enumerate(node.args[1]) if isinstance(size, Node)
    ]
    if not found:
        return None
    if len(found) > 1:
        raise ArgumentError(
            f"export with open sizes: {node.name} has {len(found)} of them; at most one may be open"
        )
    (dim, size), scale = found[0], 1
    while size.target is operator.mul:
        factors = sorted(size.args, key=lambda factor: isinstance(factor, Node))
        if isinstance(factors[0], Node):
            break
        scale, size = scale * factors[0], factors[1]
    if size.target is not aten.sym_size.int:
        raise ArgumentError(
            f"export with open sizes: {node.name} has size {size.name}; it may be the size of a"
            " tensor, times a number"
        )
    source, source_dim = size.args
    return source, source_dim, dim, scale


def exported_program_has_symbolic_input_shape(ep: Any) -> bool:
    """Whether an input of a program has an open size."""
    placeholders = [n for n in ep.graph_module.graph.nodes if n.op == "placeholder"]
    shapes = [getattr(n.meta["val"], "shape", ()) for n in placeholders]
    return any(not isinstance(size, int) for shape in shapes for size in shape)


def process_exported_program_with_symbolic_input(ep: Any) -> None:
    """All of the above, in the graph of a program."""
    for rewrite in (
        decompose_dynamic_shape_select,
        decompose_split_with_sizes,
        remove_no_op_slice,
        decompose_dynamic_native_group_norm,
        decompose_dynamic_native_layer_norm,
        dynamic_unsqueeze_to_view,
        flatten_embedding_indices_tensor,
        replace_dynamic_expand_with_xla_op,
        replace_dynamic_view_with_xla_op,
    ):
        rewrite(ep.graph_module)
        ep.graph_module.graph.eliminate_dead_code()
        ep.graph_module.graph.lint()
        ep.graph_module.recompile()
