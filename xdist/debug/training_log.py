"""The lines training scripts print, and their TensorBoard summaries, in torch_xla's format."""

import functools
import os
import time
from collections.abc import Callable, Mapping
from multiprocessing import get_context
from typing import Any

from torch_xdist import metrics, world
from torch_xdist.debug import metrics_compare


def now(format: str = "%H:%M:%S") -> str:
    """The local time as text."""
    return time.strftime(format)


def training_line(
    device: Any,
    step: int | None,
    loss: float,
    rate: float,
    global_rate: float,
    epoch: int | None = None,
) -> str:
    """`| Training Device=xla:0/1 Epoch=1 Step=10 Loss=0.00136 Rate=430.41 ...`."""
    fields = [f"| Training Device={_rank_name(device)}"]
    fields += [f"Epoch={epoch}"] if epoch is not None else []
    fields += [f"Step={step}"] if step is not None else []
    fields += [f"Loss={loss:.5f}", f"Rate={rate:.2f}", f"GlobalRate={global_rate:.2f}"]
    return " ".join([*fields, f"Time={now()}"])


def test_line(
    device: Any, accuracy: float | None, epoch: int | None = None, step: int | None = None
) -> str:
    """`| Test Device=xla:0/1 Step=90 Epoch=1 Accuracy=98.12 Time=21:54:36`."""
    fields = [f"| Test Device={_rank_name(device)}"]
    fields += [f"Step={step}"] if step is not None else []
    fields += [f"Epoch={epoch}"] if epoch is not None else []
    fields += [f"Accuracy={accuracy:.2f}"] if accuracy is not None else []
    return " ".join([*fields, f"Time={now()}"])


def _rank_name(device: Any) -> str:
    return f"{device}/{world.rank()}"


def print_training_update(
    device: Any,
    step: int | None,
    loss: Any,
    rate: float,
    global_rate: float,
    epoch: int | None = None,
    summary_writer: Any = None,
) -> None:
    """Print one line about training, and write its loss and rates to the summary.

    `loss` may be a device tensor: it is read here, so call this from a step closure.
    """
    loss = float(loss)
    print(training_line(device, step, loss, rate, global_rate, epoch), flush=True)
    scalars = {"Rate/train": rate, "GlobalRate/train": global_rate, "Loss/train": loss}
    write_to_summary(summary_writer, step, scalars)


def print_test_update(
    device: Any, accuracy: float | None, epoch: int | None = None, step: int | None = None
) -> None:
    """Print one line about a test."""
    print(test_line(device, accuracy, epoch, step), flush=True)


def get_summary_writer(logdir: str | None) -> Any:
    """A tensorboardX writer into `logdir`, its start time written; None without a folder.

    Raises ImportError where tensorboardX is not installed.
    """
    if not logdir:
        return None
    try:
        from tensorboardX import SummaryWriter
    except ImportError as error:
        raise ImportError(
            "get_summary_writer: tensorboardX is not installed; run `pip install tensorboardX`, or"
            " pass no logdir"
        ) from error
    writer = SummaryWriter(log_dir=logdir)
    write_to_summary(writer, 0, {"TensorboardStartTimestamp": time.time()})
    return writer


def close_summary_writer(summary_writer: Any) -> None:
    """Close a writer that may be None."""
    if summary_writer is not None:
        summary_writer.close()


def write_to_summary(
    summary_writer: Any,
    global_step: int | None = None,
    dict_to_write: Mapping[str, float] | None = None,
    write_xla_metrics: bool = False,
) -> None:
    """Write the scalars, and with `write_xla_metrics` every number of the metrics report."""
    if summary_writer is None:
        return
    for name, value in (dict_to_write or {}).items():
        summary_writer.add_scalar(name, value, global_step)
    if not write_xla_metrics:
        return
    parsed = metrics_compare.parse_metrics_report(metrics.report())
    fallbacks = 0.0
    for name, value in parsed.items():
        summary_writer.add_scalar(name, value, global_step)
        if name.startswith(metrics.FALLBACK):
            fallbacks += value
    summary_writer.add_scalar("aten_ops_sum", fallbacks, global_step)


def mp_test(func: Callable[..., Any]) -> Callable[..., None]:
    """Decorate a TestCase method so that it runs in a process of its own.

    The process is forked; AssertionError when it does not exit with 0.
    """

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        child = get_context("fork").Process(target=_leave_with, args=(func, args, kwargs))
        child.start()
        child.join()
        if child.exitcode != 0:
            raise AssertionError(
                f"{func.__name__}: its process exited with {child.exitcode}; its own message"
                " stands above"
            )

    return wrapper


def _leave_with(func: Callable[..., Any], args: Any, kwargs: Any) -> None:
    func(*args, **kwargs)
    os._exit(0)
