"""When two results of one call agree: values, dtypes, shapes, and order among equals."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from sweep_forms import Inputs, tensors_of
from torch.utils import _pytree as pytree

# What ours may be farther from the exact result than CPU torch: both only round.
ROUNDING = 1.1
Tensors = list[torch.Tensor]


def compare(expected: Any, got: Any) -> None:
    """Values, dtypes and shapes at the default tolerances of the dtype; plain values equal."""
    one, other = pytree.tree_leaves(expected), pytree.tree_leaves(got)
    if len(one) != len(other):
        raise AssertionError(f"{len(other)} results instead of {len(one)}")
    for index, (e, g) in enumerate(zip(one, other)):
        if isinstance(e, torch.Tensor):
            if isinstance(g, torch.Tensor) and g.device.type != "xla":
                raise AssertionError(f"result {index}: it is on {g.device}, not on the device")
            compare_tensors(e, g, f"result {index}")
        elif type(e) is not type(g) or (e != g and e == e):
            raise AssertionError(f"result {index}: {g!r} instead of {e!r}")


def compare_kinds(expected: Any, got: Any) -> None:
    """Dtypes and shapes only; ours are read, so that they are computed."""
    ours = [(t.dtype, t.shape) for t in map(on_host, tensors_of(got))]
    theirs = [(t.dtype, t.shape) for t in tensors_of(expected)]
    if ours != theirs:
        raise AssertionError(f"results of kinds {ours} instead of {theirs}")


def compare_tensors(expected: torch.Tensor, got: Any, where: str) -> None:
    if not isinstance(got, torch.Tensor):
        raise AssertionError(f"{where}: {got!r} instead of a tensor")
    host = on_host(got)
    if expected.dtype is not host.dtype:
        raise AssertionError(f"{where}: dtype {host.dtype} instead of {expected.dtype}")
    torch.testing.assert_close(
        host, on_host(expected), equal_nan=True, msg=lambda m: f"{where}: {m}"
    )


def on_host(t: torch.Tensor) -> torch.Tensor:
    return t.detach().cpu().resolve_conj().resolve_neg()


# How far CPU torch and ours are from double precision at worst, per result.
Distances = list[tuple[float, float]]


def distances(expected: Any, got: Any, exact: Any) -> Distances | None:
    """None where ours are wrong, not only rounded."""
    one, other, real = tensors_of(expected), tensors_of(got), tensors_of(exact)
    kinds = [[(t.shape, t.dtype) for t in ts] for ts in (one, other)]
    if kinds[0] != kinds[1] or [t.shape for t in real] != [t.shape for t in one]:
        return None
    found = [_distances(on_host(e), on_host(g), on_host(x)) for e, g, x in zip(one, other, real)]
    return None if None in found else found  # type: ignore[return-value]


def as_near(found: Distances, *, expected: Any, got: Any) -> bool:
    """Whether each result is close to CPU torch's, or about as near to the exact one."""
    pairs = zip(tensors_of(expected), tensors_of(got), found)
    return all(is_close(e, g) or ours <= ROUNDING * theirs for e, g, (theirs, ours) in pairs)


def as_near_on_average(draws: Sequence[Distances]) -> bool:
    """Whether ours are about as near to the exact results as CPU torch's, over several draws."""
    for of_result in zip(*draws, strict=True):
        theirs, ours = (math.fsum(d[side] ** 2 for d in of_result) for side in (0, 1))
        if ours > ROUNDING**2 * theirs:
            return False
    return True


def _distances(
    expected: torch.Tensor, got: torch.Tensor, exact: torch.Tensor
) -> tuple[float, float] | None:
    if not (got.is_floating_point() or got.is_complex()):
        return (0.0, 0.0) if is_close(expected, got) else None
    theirs, ours = _errors(expected, exact), _errors(got, exact)
    # Where CPU torch is not finite (an overflow on its way), ours must be right.
    lost = ~theirs.isfinite()
    right = torch.isclose(got.to(exact.dtype), exact, *_tolerances(got.dtype), equal_nan=True)
    if not right[lost].all():
        return (0.0, 0.0) if is_close(expected, got) else None
    theirs, ours = theirs[~lost], ours[~lost]
    return (theirs.max().item(), ours.max().item()) if theirs.numel() else (0.0, 0.0)


def _errors(value: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """How far each element is from the exact one; infinite where only one of them is a number."""
    value = value.to(exact.dtype)
    same = (value == exact) | (value.isnan() & exact.isnan())
    return torch.where(same, 0.0, (value - exact).abs().nan_to_num(nan=torch.inf))


def _tolerances(dtype: torch.dtype) -> tuple[float, float]:
    return torch.testing._comparison.default_tolerances(dtype)


def is_close(expected: torch.Tensor, got: torch.Tensor) -> bool:
    try:
        compare_tensors(expected, got, "")
    except AssertionError:
        return False
    return True


def agrees_up_to_ties(op: Any, inputs: Inputs, expected: Any, got: Any) -> bool:
    """Whether positions differ only among equal numbers, whose order torch leaves open.

    The gradient then belongs to the positions that were returned.
    """
    if op.name not in TIED or inputs[2].get("stable"):
        return False
    one, other = tensors_of(expected), [on_host(t) for t in tensors_of(got)]
    if [(t.shape, t.dtype) for t in one] != [(t.shape, t.dtype) for t in other]:
        return False
    return TIED[op.name](op, inputs, one, other)


def _tied_pairs(op: Any, inputs: Inputs, one: Tensors, other: Tensors) -> bool:
    """For (values, positions) and perhaps the gradient of the values' sum."""
    x, dim = inputs[0].detach(), _dim(op, inputs)
    values, places = other[0], other[1]
    if values.dim() < x.dim():
        values, places = values.unsqueeze(dim), places.unsqueeze(dim)
    fits = is_close(one[0], other[0]) and _reads(x, dim, places, values) and _distinct(places, dim)
    if len(other) == 3 and other[2].is_floating_point():
        wanted = torch.zeros_like(x).scatter(dim, places, torch.ones_like(values))
        fits = fits and is_close(wanted, other[2])
    return fits


def _tied_positions(op: Any, inputs: Inputs, one: Tensors, other: Tensors) -> bool:
    x, dim = inputs[0].detach(), _dim(op, inputs)
    sorted_x = x.gather(dim, one[0])
    return _reads(x, dim, other[0], sorted_x) and _distinct(other[0], dim)


def _dim(op: Any, inputs: Inputs) -> int:
    place = {"topk": 1, "kthvalue": 1}.get(op.name, 0)
    return inputs[1][place] if len(inputs[1]) > place else inputs[2].get("dim", -1)


def _reads(x: torch.Tensor, dim: int, places: torch.Tensor, values: torch.Tensor) -> bool:
    read = x.gather(dim, places)
    return bool(((read == values) | (read.isnan() & values.isnan())).all())


def _distinct(places: torch.Tensor, dim: int) -> bool:
    ordered = places.sort(dim).values if places.dim() else places
    return not places.dim() or bool((ordered.diff(dim=dim) > 0).all())


TIED: dict[str, Callable[[Any, Inputs, Tensors, Tensors], bool]] = {
    "sort": _tied_pairs,
    "topk": _tied_pairs,
    "kthvalue": _tied_pairs,
    "argsort": _tied_positions,
}
