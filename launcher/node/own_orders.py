"""The head's orders, as a node obeys them: what runs on this machine, in which folder and with
which variables, is what this node's own command line says. Pure.

Of the head come: which ranks these are, where they meet, which devices and cores they have, when
they start and end. Whoever is at the head's end cannot make a node run anything else.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch_xdist.launcher import log_ends
from torch_xdist.launcher.facts import devices
from torch_xdist.launcher.facts.errors import ProtocolError, UsageError
from torch_xdist.launcher.facts.job import Job, check_id
from torch_xdist.launcher.on_host.profiling import at_agent
from torch_xdist.system.frames import Message
from torch_xdist.system.rank import Rank

# What the head may ask of the agent. Nothing here has to do with the payload of `spawn`, and host 0
# alone serves what the ranks meet at.
_PASSED = ("release", "stop", "stacks", "bye")
_OWN = ("XLA_RUN_SECRET", "XLA_RUN_LOG_DIR", "TORCHELASTIC_ERROR_FILE")
_NAMES = frozenset(Rank().to_environ()) - frozenset(_OWN)
# What `devices.device_variables` and `placement` say of a rank's device, and nothing that names a
# file or an option of a library.
_OF_DEVICES = frozenset(
    (
        *("PJRT_DEVICE", "CUDA_VISIBLE_DEVICES", "CLOUD_TPU_TASK_ID"),
        *("TPU_VISIBLE_CHIPS", "TPU_CHIPS_PER_PROCESS_BOUNDS", "TPU_PROCESS_BOUNDS"),
        *("TPU_PROCESS_ADDRESSES", "TPU_PROCESS_PORT"),
        *("JAX_ENABLE_RECOVERABILITY", "JAX_ENABLE_PREEMPTION_SERVICE"),
    )
)


class OwnOrders:
    """Translates the orders of one attempt.

    Args:
        job: as this node's command line describes it.
        node: which one it is.
        address: of this machine, on the way to node 0.
        job_id, attempt, secret: of the job and its ranks.
    """

    def __init__(
        self, job: Job, node: int, address: str, job_id: str, attempt: int, secret: bytes
    ) -> None:
        self._job, self._node, self._address = job, node, address
        self._job_id, self._attempt, self._secret = _name(job_id), attempt, secret
        self._beat_s = job.timeouts.beat_s
        self.log_root = job.log_root if job.log_root_is_named else ""
        """Where logs go; set from what the agent says of this machine, if the user has not."""

    def own(self, message: Message) -> Message | None:
        """What the agent is told; None for what is not for it.

        Raises:
            ProtocolError: the head cannot mean that.
        """
        try:
            match message["op"]:
                case "config":
                    return self._config(message)
                case "start":
                    return self._start(message)
                case "reach":
                    address, limit_s = str(message["address"]), float(message["limit_s"])
                    return {"op": "reach", "address": address, "limit_s": limit_s}
                case log_ends.OP:
                    # Of the log of a rank of this node, below its own folder.
                    return {"op": log_ends.OP, "rank": int(message["rank"])}
                case op if op in at_agent.OPS:
                    return at_agent.of_these_alone(message)
                case op if op in _PASSED:
                    return message
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ProtocolError(f"node 0 says what cannot be read: {error!r}") from error
        return None

    def _config(self, message: Message) -> Message:
        self._beat_s = float(message["beat_s"])
        return {
            "op": "config",
            "host_index": self._node,
            "hosts": len(self._job.hosts),
            "named": self._address,
            "keeps_logs": not self._job.log_root_is_named,
            "device": self._device(str(message["device"])),
            "beat_s": self._beat_s,
            "lost_s": float(message["lost_s"]),
        }

    @staticmethod
    def _device(kind: str) -> str:
        if kind and kind not in devices.KINDS:
            raise ProtocolError(f"node 0 names a device {kind!r}, which is unknown here")
        return kind

    def _start(self, message: Message) -> Message:
        job, slots = self._job, self._job.hosts[self._node].slots
        ranks = [self._rank(facts) for facts in message["ranks"]]
        if len(ranks) != slots:
            raise ProtocolError(f"node 0 orders {len(ranks)} ranks, and -n says {slots}")
        folder = self._log_folder(message)
        task = {"kind": job.kind, "argv": job.argv, "sys_path": job.sys_path}
        return {
            "op": "start",
            "time_s": float(message["time_s"]),
            "task": {**task, "beat_s": self._beat_s},
            "env": job.env,
            "cwd": job.cwd,
            "log_dir": folder,
            "is_own_log_dir": bool(folder) and not job.log_root_is_named,
            "tee": [int(rank) for rank in message["tee"]],
            "stdin_rank": None,
            "ranks": [{**facts, "env": self._with_own(facts, folder)} for facts in ranks],
        }

    def _rank(self, facts: Mapping[str, Any]) -> Message:
        known = _NAMES | _OF_DEVICES
        env = {name: str(value) for name, value in facts["env"].items() if name in known}
        made: Message = {"rank": int(facts["rank"]), "env": env, "threads": int(facts["threads"])}
        return {**made, "cores": [int(core) for core in facts["cores"]]}

    def _with_own(self, facts: Message, folder: str) -> dict[str, str]:
        error_file = f"{folder}/rank-{facts['rank']}.error.json" if folder else ""
        own = dict(zip(_OWN, (self._secret.hex(), folder, error_file), strict=True))
        return {**facts["env"], **own}

    def _log_folder(self, message: Message) -> str:
        """ROOT/JOB/attempt-N, below a root of this node's own; "" where it keeps no logs."""
        if not self.log_root:
            return ""
        name = _name(os.path.basename(str(message.get("log_folder") or self._job_id)))
        return str(Path(self.log_root, name, f"attempt-{self._attempt}"))


def _name(job_id: str) -> str:
    """The name of a job, if it can be that of a folder."""
    try:
        return check_id(job_id)
    except UsageError as error:
        raise ProtocolError(f"node 0 names a {error}") from None
