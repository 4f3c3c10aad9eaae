"""Collectives inside functions that torch.compile captures whole."""

import torch


def compiled(rank, size):
    import torch_xla
    import torch_xla.core.xla_model as xm

    def step(x, y):
        xm.all_reduce(xm.REDUCE_SUM, [y])
        return (
            xm.all_reduce(xm.REDUCE_MAX, x, scale=0.5) + 1,
            xm.all_gather(x, 0),
            xm.reduce_scatter(xm.REDUCE_SUM, x, 1.0, 0, size),
        )

    captured = torch.compile(step, backend="openxla", fullgraph=True)
    found = []
    for number in range(2):
        x = torch.arange(2.0, device="xla") + 10 * rank + number
        y = torch.ones(1, device="xla") * (rank + 1)
        results = captured(x, y)
        torch_xla.sync()
        found.append([t.tolist() for t in (*results, y)])
    return found


def expected(size):
    found = []
    for number in range(2):
        inputs = [torch.arange(2.0) + 10 * r + number for r in range(size)]
        total = torch.stack(inputs)
        found.append(
            [
                (total.amax(0) * (0.5 if size > 1 else 1) + 1).tolist(),
                torch.cat(inputs).tolist(),
                total.sum(0),
                [size * (size + 1) / 2],
            ]
        )
    return found


def test_a_compiled_function_holds_its_collectives(two):
    for rank, found in enumerate(two.run(compiled)):
        for row, wanted in zip(found, expected(2), strict=True):
            wanted[2] = wanted[2].chunk(2)[rank].tolist()
            assert row == wanted
