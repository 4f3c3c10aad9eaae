"""`DataParallel`: one thread per device of this process, each with its own copy of the model.

The way of 2019: give it the model, then call it with a loop function and a loader. New scripts
use one process per device.
"""

import copy
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from torch_xdist import settings
from torch_xdist.core.devices import device_names
from torch_xdist.errors import DeviceError
from torch_xdist.loaders.parallel import ParallelLoader
from torch_xdist.loaders.structure import tensors
from torch_xdist.ranks import replicas

_EXIT_CODE = 17
_FRAMES = 16

LoopFunction = Callable[..., Any]


class Context:
    """What one device's loop function keeps between calls: an optimizer, a counter.

    Args:
        device: the device of the thread.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def getattr_or(self, name: str, defval: Any) -> Any:
        """The attribute `name`; where it is absent, `defval` (called if it can be), kept."""
        value = getattr(self, name, None)
        if value is None:
            value = defval() if callable(defval) else defval
            setattr(self, name, value)
        return value


class ThreadResult:
    """Where a thread of `DataParallel` leaves what its loop function returned.

    Attributes:
        result: None until it returned.
    """

    def __init__(self) -> None:
        self.result: Any = None


class DataParallel:
    """Copies of a model on several devices, trained by a loop function in one thread each.

    Args:
        network: a module, or a callable that makes one.
        device_ids: ["xla:0", ...]; None: every device; []: the module itself, where it is, in the
            calling thread.
        batchdim: the dim of a batch's size.
        drop_last: stop at the first batch of another size.
        kwargs: parameters of `ParallelLoader`.

    `models` are the copies, `devices` the devices. The module given is not trained, except with
    `device_ids=[]`.
    """

    # Batches come as (number, data) where scripts of 2019 expect it.
    enumerates = False

    def __init__(
        self,
        network: nn.Module | Callable[[], nn.Module],
        device_ids: Sequence[str | torch.device] | None = None,
        batchdim: int = 0,
        drop_last: bool = False,
        **kwargs: Any,
    ) -> None:
        if device_ids is None:
            device_ids = device_names.get_xla_supported_devices() or []
        module = network if isinstance(network, nn.Module) else network()
        self._batchdim = batchdim
        self._drop_last = drop_last
        self._loader_arguments = kwargs
        self._devices = list(device_ids)
        self._native = not self._devices
        if self._native:
            where = [_only_device(module)]
            self._models = [module]
        else:
            where = [torch.device(d) for d in self._devices]
            self._models = [copy.deepcopy(module).to(d) for d in where]
        self._contexts = [Context(d) for d in where]

    @property
    def devices(self) -> list[Any]:
        """The devices, as they were given."""
        return self._devices

    @property
    def models(self) -> list[nn.Module]:
        """The copies of the model, in the order of the devices."""
        return self._models

    def __call__(
        self,
        loop_fn: LoopFunction,
        loader: Iterable[Any],
        batchdim: int | None = None,
        fixed_batch_size: bool | int = False,
        **kwargs: Any,
    ) -> list[Any]:
        """Run `loop_fn(model, batches, device, context, **kwargs)` on every device at once.

        Every device gets the same number of batches: what is left over is dropped.

        Args:
            loader: batches on the host; batch k goes to device k modulo their number.
            batchdim: the dim of a batch's size, where the constructor's does not hold.
            fixed_batch_size: stop at the first batch of another size than the first. In 2019 it
                stood before `batchdim`: True or False there is taken as this.

        Returns what the loop functions returned, in the order of the devices. An exception in one
        of them is printed with its device, and ends the process with code 17.
        """
        if isinstance(batchdim, bool):
            # False in the other's place is its default, not dim 0.
            given_dim = None if isinstance(fixed_batch_size, bool) else fixed_batch_size
            fixed_batch_size, batchdim = bool(batchdim), given_dim
        dim = self._batchdim if batchdim is None else batchdim
        if fixed_batch_size or self._drop_last:
            loader = _OfOneSize(loader, dim)
        if self._native:
            return [self._run(loop_fn, 0, self._counted(loader), kwargs)]
        return self._run_threads(loop_fn, loader, dim, kwargs)

    def _counted(self, batches: Iterable[Any]) -> Iterable[Any]:
        wanted = self.enumerates or settings.current().enumerate_batches
        return _Numbered(batches) if wanted else batches

    def _run(
        self, loop_fn: LoopFunction, index: int, batches: Iterable[Any], kwargs: dict[str, Any]
    ) -> Any:
        context = self._contexts[index]
        return loop_fn(self._models[index], batches, context.device, context, **kwargs)

    def _run_threads(
        self, loop_fn: LoopFunction, loader: Iterable[Any], dim: int, kwargs: dict[str, Any]
    ) -> list[Any]:
        results = [ThreadResult() for _ in self._devices]
        feed = ParallelLoader(loader, self._devices, batchdim=dim, **self._loader_arguments)

        def work(index: int) -> None:
            where = self._contexts[index].device
            try:
                replicas.set_replication(where, self._devices)
                batches = self._counted(feed.per_device_loader(where))
                results[index].result = self._run(loop_fn, index, batches, kwargs)
            except BaseException as error:
                _end_process(where, error)
            finally:
                replicas.set_replication(where, [])

        threads = [
            threading.Thread(target=work, args=(i,), name=f"DataParallel {d}", daemon=True)
            for i, d in enumerate(self._devices)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        feed.close()
        return [result.result for result in results]


class NumberedDataParallel(DataParallel):
    """DataParallel as scripts of 2019 know it: the loop gets (number on this device, data)."""

    enumerates = True


class NumberedParallelLoader(ParallelLoader):
    """ParallelLoader as scripts of 2019 know it: it yields (number on this device, data)."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"numbered": True, **kwargs})


def _only_device(module: nn.Module) -> torch.device:
    devices = {p.device for p in module.parameters()}
    if len(devices) > 1:
        raise DeviceError(
            f"DataParallel: Model uses more than one device: {sorted(map(str, devices))}; move it"
            " to one, or name device_ids"
        )
    return devices.pop() if devices else torch.device("cpu")


def _end_process(device: torch.device, error: BaseException) -> None:
    """The other threads may wait in a collective for ever: nothing but the process can end."""
    print(f"Exception in model function for device={device}: {error}", file=sys.stderr)
    traceback.print_exception(error, limit=_FRAMES, file=sys.stderr)
    sys.stderr.flush()
    sys.stdout.flush()
    os._exit(_EXIT_CODE)


class _Numbered:
    """Batches as (number, batch); as long as they are."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        return enumerate(self._batches)

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]


class _OfOneSize:
    """The batches up to the first whose size on `dim` differs from the first one's."""

    def __init__(self, loader: Iterable[Any], dim: int) -> None:
        self._loader = loader
        self._dim = dim

    def __iter__(self) -> Iterator[Any]:
        expected = None
        for batch in self._loader:
            size = _batch_size(batch, self._dim)
            expected = size if expected is None else expected
            if size != expected:
                return
            yield batch

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]


def _batch_size(batch: Any, dim: int) -> int | None:
    for _, tensor in tensors(batch):
        return tensor.size(dim)
    return None
