"""`CheckpointManager` of torch_xla: a folder of checkpoints by step, also in the background."""

import io
import json
import logging
import os
import pickle
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import torch.distributed as dist
import torch.distributed.checkpoint as dist_cp
from fsspec.core import url_to_fs
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader, FsspecWriter

from torch_xdist.core.devices import steps
from torch_xdist.errors import CheckpointError
from torch_xdist.sharded_checkpoint import preemption
from torch_xdist.sharded_checkpoint.planners import SPMDLoadPlanner, SPMDSavePlanner
from torch_xdist.sharded_checkpoint.state_dicts import sharded_cpu_state_dict

MANAGER_METADATA_FILE = ".manager_metadata"
# What reading the metadata of half a checkpoint raises.
_UNREADABLE = (
    OSError, EOFError, LookupError, AttributeError, TypeError, ValueError, pickle.UnpicklingError
)  # fmt: skip


@dataclass
class CheckpointMetadata:
    """When a checkpoint was taken."""

    step: int
    ts: datetime

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


class CheckpointManager:
    """Checkpoints of sharded state dicts below one folder or URL of fsspec, one for each step.

    Call `save` or `save_async` at every step: it decides whether one is due. Every process of the
    group calls the same. Source: `torch_xla.experimental.distributed_checkpoint`.

    Args:
        path: the folder, or a URL such as gs://bucket/run.
        save_interval: one is due where this divides the step.
        max_to_keep: the oldest of more are deleted; 0 keeps all.
        max_pending_async: how many may wait to be written; then `save_async` waits.
        num_of_threads: how many files are written at a time.
        process_group: of CPU tensors; None: a new one of all processes.
        chkpt_on_preemption: one is due also after SIGTERM.

    Raises CheckpointError without a process group, and for numbers that cannot be.
    """

    def __init__(
        self,
        path: str,
        save_interval: int,
        max_to_keep: int | None = 0,
        max_pending_async: int | None = 1,
        num_of_threads: int | None = 1,
        process_group: Any = None,
        chkpt_on_preemption: bool = True,
    ) -> None:
        if not dist.is_initialized():
            raise CheckpointError(
                "CheckpointManager: A process group is required: call"
                " torch.distributed.init_process_group('gloo') first"
            )
        _check("save_interval", save_interval, 1)
        _check("max_pending_async", max_pending_async, 1)
        _check("max_to_keep", max_to_keep, 0)
        self.base_path = os.path.join(path, "")
        self.save_interval = save_interval
        self.max_to_keep = max_to_keep or 0
        self.num_of_threads = num_of_threads or 1
        self.chkpt_on_preemption = chkpt_on_preemption
        self.pg = process_group or dist.new_group()
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending = threading.Semaphore(max_pending_async or 1)
        self._futures: list[Future[None]] = []
        self._writing = threading.Lock()
        self._tracked = deque(self._found())
        if chkpt_on_preemption:
            preemption.activate()

    def _found(self) -> list[CheckpointMetadata]:
        """The checkpoints that are there, the oldest first."""
        files, folder = url_to_fs(self.base_path)
        files.makedirs(folder, exist_ok=True)
        found, broken = [], []
        for path in files.ls(folder, detail=False):
            try:
                with files.open(os.path.join(path, MANAGER_METADATA_FILE), "rb") as file:
                    found.append(read_metadata(file.read()))
            except _UNREADABLE:
                broken.append(path)
        if broken:
            logging.warning("Ignoring invalid checkpoints: %s", broken)
        return sorted(found, key=lambda one: one.ts)

    def _path(self, step: int) -> str:
        return os.path.join(self.base_path, str(step))

    def _delete(self, step: int) -> None:
        if dist.get_rank(self.pg) == 0:
            files, folder = url_to_fs(self._path(step))
            if files.exists(folder):
                files.rm(folder, recursive=True)

    def _save(self, step: int, state_dict: dict[str, Any]) -> None:
        """Write a checkpoint; it counts once its metadata is there, so half a one never does."""
        with self._writing:
            self._delete(step)
            writer = FsspecWriter(
                self._path(step), thread_count=self.num_of_threads, per_thread_copy_ahead=0
            )
            dist_cp.save(
                state_dict,
                storage_writer=writer,
                planner=SPMDSavePlanner(),
                process_group=self.pg,
            )
            metadata = CheckpointMetadata(step, datetime.now())
            self._tracked = deque([one for one in self._tracked if one.step != step])
            self._tracked.append(metadata)
            if dist.get_rank(self.pg) == 0:
                files, folder = url_to_fs(self._path(step))
                with files.open(os.path.join(folder, MANAGER_METADATA_FILE), "wb") as file:
                    file.write(written_metadata(metadata))
            while 0 < self.max_to_keep < len(self._tracked):
                self._delete(self._tracked.popleft().step)

    def should_save(self, step: int) -> bool:
        """Whether a checkpoint is due: by its step, or because the machine is taken away."""
        if self.chkpt_on_preemption and self.reached_preemption(step):
            logging.warning(
                "Preemption sync point reached at step %s. Triggering a checkpoint.", step
            )
            return True
        return step % self.save_interval == 0

    def save(self, step: int, state_dict: dict[str, Any], force: bool | None = False) -> bool:
        """Write a checkpoint if one is due, or with `force`; returns whether it did."""
        if not (self.should_save(step) or force):
            return False
        steps.wait_device_ops()
        self._save(step, state_dict)
        return True

    def save_async(self, step: int, state_dict: dict[str, Any], force: bool | None = False) -> bool:
        """`save`, but training goes on as soon as the values are copied to the host.

        Raises what writing an earlier one ended with.
        """
        self._raise_failed()
        if not (self.should_save(step) or force):
            return False
        steps.wait_device_ops()
        copied = sharded_cpu_state_dict(state_dict)
        self._pending.acquire()
        future = self._pool.submit(self._save, step, copied)
        future.add_done_callback(lambda _: self._pending.release())
        self._futures.append(future)
        return True

    def _raise_failed(self) -> None:
        """Raise the first error of those that have ended, and forget these."""
        ended = [future for future in self._futures if future.done()]
        self._futures = [future for future in self._futures if not future.done()]
        for future in ended:
            future.result()

    def restore(self, step: int, state_dict: dict[str, Any]) -> None:
        """Read a checkpoint into the tensors of a state dict, in place.

        What is no tensor is replaced in the dict: call `load_state_dict` with it afterwards. Raises
        CheckpointError for a step of which there is none.
        """
        if step not in self.all_steps():
            raise CheckpointError(
                f"Cannot restore from untracked step {step}. Valid steps are: {self.all_steps()}"
            )
        dist_cp.load(
            state_dict,
            storage_reader=FsspecReader(self._path(step)),
            planner=SPMDLoadPlanner(),
            process_group=self.pg,
        )

    def all_steps(self) -> list[int]:
        """The steps of which there are checkpoints, by their steps."""
        return sorted(one.step for one in self._tracked)

    def join(self) -> None:
        """Wait until everything is written; raises what that ended with."""
        for future in self._futures:
            future.exception()
        self._raise_failed()

    def reached_preemption(self, step: int) -> bool:
        """Whether any process was told that its machine is taken away."""
        return preemption.reached(self.pg)


def _check(name: str, value: int | None, least: int) -> None:
    if value is None or value < least:
        raise CheckpointError(f"CheckpointManager: {name} must be at least {least}, not {value}")


def written_metadata(metadata: CheckpointMetadata) -> bytes:
    """The bytes of a checkpoint's metadata file."""
    return json.dumps({"step": metadata.step, "ts": metadata.ts.isoformat()}).encode()


def read_metadata(content: bytes) -> CheckpointMetadata:
    """The metadata of a checkpoint of ours, or of torch_xla's, which pickles it."""
    if content[:1] == b"{":
        found = json.loads(content)
        return CheckpointMetadata(int(found["step"]), datetime.fromisoformat(found["ts"]))
    metadata = _Unpickler(io.BytesIO(content)).load()
    if not isinstance(metadata, CheckpointMetadata):
        raise pickle.UnpicklingError(f"a {type(metadata).__name__} is no checkpoint's metadata")
    return metadata


class _Unpickler(pickle.Unpickler):
    """Reads the two classes that torch_xla's file has, and refuses all others."""

    _ALLOWED = {
        ("torch_xla.experimental.distributed_checkpoint.manager", "_CheckpointMetadata"): (
            CheckpointMetadata
        ),
        ("datetime", "datetime"): datetime,
    }

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self._ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(
                f"{module}.{name} is not part of a checkpoint's metadata"
            ) from None
