"""The reports that XLA_METRICS_FILE wrote, read back: how each number went from step to step."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch_xdist.debug.metrics_compare import parse_metrics_report

Points = Mapping[str, Sequence[tuple[int, float]]]


def metric_points(text: str) -> dict[str, list[tuple[int, float]]]:
    """(number of the report, value) of every name, as `parse_metrics_report` names them."""
    found: dict[str, list[tuple[int, float]]] = {}
    _, *reports = re.split(r"^\[MetricsData; step=\d+\]\n", text, flags=re.M)
    for number, report in enumerate(reports):
        for name, value in parse_metrics_report(report).items():
            found.setdefault(name, []).append((number, value))
    return found


def metrics_report(points: Points) -> str:
    """A block [name] of lines `number<TAB>value` for each name."""
    return "\n".join(
        f"[{name}]\n" + "".join(f"{number}\t{value}\n" for number, value in values)
        for name, values in points.items()
    )


def save_plots(points: Points, folder: Path) -> None:
    """A picture of each name. Raises ImportError without matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    folder.mkdir(exist_ok=True)
    for name, values in points.items():
        figure = Figure()
        axes = figure.add_subplot()
        axes.plot(*zip(*values), marker=".")
        axes.set(title=name, xlabel="report", ylabel="value")
        file = re.sub(r"[^\w.-]", "_", name)
        FigureCanvasAgg(figure).print_figure(folder / f"{file}.png")


def save_to_tensorboard(points: Points, folder: Path) -> None:
    """A scalar of each name for TensorBoard. Raises ImportError without tensorboardX."""
    from tensorboardX import SummaryWriter

    with SummaryWriter(str(folder)) as writer:
        for name, values in points.items():
            for number, value in values:
                writer.add_scalar(name, value, number)
