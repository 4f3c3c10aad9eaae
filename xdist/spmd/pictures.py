"""A picture of a sharding in the terminal: which devices hold which part."""

from typing import Any

import numpy as np
import torch

from torch_xdist.core.devices import device
from torch_xdist.spmd import marks
from torch_xdist.spmd.marks import unwrapped

try:
    from rich.align import Align
    from rich.box import SQUARE
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table

    RICH_ENABLED = True
except ImportError:
    RICH_ENABLED = False

_ROW_LINES = 3
_WIDER_THAN_HIGH = 1.5


def visualize_sharding(
    sharding: str,
    use_color: bool = True,
    scale: float = 1.0,
    min_width: int = 9,
    max_width: int = 80,
) -> Any:
    """Print the grid of tiles that a sharding means, with the devices of each.

    Args:
        sharding: as XLA's HLO spells it; of more than two dims the first two are shown.
        scale: of the height of a row, 3 lines.
        min_width, max_width: of a column, in characters.

    Returns the table. Raises ValueError for a text of another form, and without the package rich.
    """
    if not RICH_ENABLED:
        raise ValueError(
            "`visualize_sharding` requires `rich` to be installed:"
            " pip install torch-xdist[pictures]"
        )
    grid = _grid(sharding)
    print(f"Visualizing {sharding} (showing up to the first two dimensions)")
    console = Console(width=max_width)
    colored = use_color and console.color_system is not None
    table = Table(
        show_header=False,
        show_lines=not colored,
        padding=0,
        highlight=not colored,
        pad_edge=False,
        box=None if colored else SQUARE,
    )
    width = int(grid.shape[1] * int(_ROW_LINES * scale) * _WIDER_THAN_HIGH)
    table.min_width = min(max(width, min_width), max_width)
    kind = device.device_type()
    for row in grid:
        cells = [f"{kind} {[*map(int, held)]}" for held in row]
        centred = [Align(text, "center", vertical="middle") for text in cells]
        table.add_row(*[Padding(cell, (1, 1, 1, 1)) for cell in centred])
    console.print(table, end="\n\n")
    return table


def _grid(sharding: str) -> np.ndarray:
    """The devices [rows, columns, copies] of the tiles that a text names."""
    if sharding in ("", "{replicated}"):
        return np.arange(len(marks.layout("visualize_sharding").devices)).reshape(1, 1, -1)
    try:
        tiles, rest = sharding.removeprefix("{devices=[").split("]", 1)
        is_partial = rest.endswith(" last_tile_dim_replicate}")
        devices = rest.removesuffix("}").removesuffix(" last_tile_dim_replicate").split(",")
        sizes = [int(size) for size in tiles.split(",")]
        copies = sizes.pop() if is_partial else 1
        sizes = [*sizes, 1, 1][: max(2, len(sizes))]
        grid = np.array([int(number) for number in devices]).reshape(*sizes, copies)
    except ValueError as error:
        raise ValueError(
            f"sharding {sharding!r} is not organized as expected: {{devices=[2,2]0,1,2,3}},"
            " {devices=[2,1,2]0,1,2,3 last_tile_dim_replicate} or {replicated}"
        ) from error
    return grid.reshape(sizes[0], sizes[1], -1, copies)[:, :, 0]


def construct_v1_sharding_str(t: torch.Tensor) -> str:
    """How a tensor is sharded, with its devices listed one by one."""
    found = marks.tiling_of(unwrapped(t))
    return "" if found is None else found.text


def visualize_tensor_sharding(t: torch.Tensor, **kwargs: Any) -> Any:
    """`visualize_sharding` of a tensor's."""
    return visualize_sharding(construct_v1_sharding_str(t), **kwargs)
