"""Which better rows a program gets depends on where it runs."""

import torch

import torch_xla
from torch_xdist import platforms
from torch_xdist.core.devices import device as devices_here
from torch_xdist.core.rows import better_rows
from torch_xdist.core.trace.trace import rows_of


def loop() -> torch.Tensor:
    """Of 12 times, with its gradient pending."""
    torch_xla.sync()
    x = torch.randn(3, 12, 4).to("xla").requires_grad_()
    state = x[:, 0]
    for t in range(1, 12):
        state = state * x[:, t] + state * (t + 0.5)
    return torch.autograd.grad(state.sum(), x)[0]


def names(platform: str, *, is_sharded: bool) -> tuple[set[str], int, int]:
    entries = devices_here.trace_of(devices_here.default_index()).tape.entries
    choices = platforms.of(platform)
    found = better_rows.of_program(entries, choices, is_sharded=is_sharded)
    of_rows = {row[0].name for _, row in rows_of(found.entries)}
    return of_rows, len(found.settled), len(found.fed_apart)


def test_loops_over_time_are_computed_otherwise_on_a_cpu_alone():
    gradient = loop()
    found, settled, fed_apart = names("cpu", is_sharded=False)
    assert {"gradients of parts", "aten.select.int where a number says"} <= found
    assert settled and fed_apart
    for platform, is_sharded in (("cpu", True), ("cuda", False), ("tpu", False)):
        found, settled, fed_apart = names(platform, is_sharded=is_sharded)
        assert found.isdisjoint({"gradients of parts", "aten.select.int where a number says"})
        assert not settled and not fed_apart
    assert gradient.isfinite().all()
