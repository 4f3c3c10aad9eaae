"""Every environment variable the launcher reads, each in one place; nothing else reads os.environ.

Functions take the environment as a mapping, so that they are pure; `environment()` gives the real
one. TIMEOUTS and VARIABLES are the tables from which the flags and docs/launching.md are made.
"""

import math
import os
import re
import shlex
import signal
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

from torch_xdist.launcher.facts.errors import SettingError
from torch_xdist.system import rank
from torch_xdist.system.errors import RankError

Environ = Mapping[str, str]
OFF = math.inf
LOOPBACK = "127.0.0.1"
# Asks a rank for the stacks of its threads. A real-time signal: SIGUSR1 and SIGUSR2 are the
# script's own, and that of schedulers. Ignored until a rank has a handler for it.
STACK_SIGNAL = signal.SIGRTMAX - 3
# The value of TPU_WORKER_ID and more in processes that were started by one that has tried libtpu.
_NO_TPU = "WARNING: could not determine TPU "


def environment() -> dict[str, str]:
    """A copy of this process's environment, without what libtpu wrote where it found no TPU."""
    return {name: value for name, value in os.environ.items() if not value.startswith(_NO_TPU)}


def publish(values: Mapping[str, str]) -> None:
    """Set variables for this process and those it starts."""
    os.environ.update(values)


def has_stdin() -> bool:
    """Whether this process has a stdin that a rank may read in its place.

    A terminal is read by the job in its foreground alone: another one would take its input away.
    """
    try:
        os.fstat(0)
        return not os.isatty(0) or os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


# ---- durations --------------------------------------------------------------------------------

_UNITS_S = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def parse_seconds(text: str, where: str) -> float:
    """Seconds from "90", "1.5s", "5m", "2h" or "off" (never, `math.inf`).

    Raises:
        SettingError: the text is none of these; `where` is the variable or flag it came from.
    """
    if text.strip().lower() in ("off", "never", "inf"):
        return OFF
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([a-z]*)", text.strip().lower())
    if match is None or match[2] not in _UNITS_S:
        raise SettingError(
            f"{where}: {text!r} is no duration; give seconds (90), a unit (5m, 2h) or off"
        )
    return float(match[1]) * _UNITS_S[match[2]]


def show_seconds(seconds: float) -> str:
    """A duration as it is written in the docs and read back by `parse_seconds`: "300 s", "off"."""
    return "off" if seconds == OFF else f"{seconds:g} s"


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long the launcher waits for what, in seconds; `OFF` (infinity) is never."""

    rendezvous_s: float = 300.0
    notice_s: float = 10.0
    beat_s: float = 2.0
    lost_s: float = 10.0
    reconnect_s: float = 30.0
    grace_s: float = 3.0
    graceful_s: float = 30.0
    exit_barrier_s: float = 60.0
    time_limit_s: float = OFF
    hang_warn_s: float = 60.0
    hang_stacks_s: float = 300.0
    hang_kill_s: float = OFF

    def to_environ(self) -> dict[str, str]:
        """The variables that give another process these same timeouts."""
        return {
            row.variable: "off"
            if getattr(self, row.field) == OFF
            else f"{getattr(self, row.field):g}"
            for row in TIMEOUTS
        }


@dataclass(frozen=True, slots=True)
class TimeoutRow:
    """One timeout: its field in `Timeouts`, its variable, its flag, and what it bounds."""

    field: str
    variable: str
    flag: str
    meaning: str

    @property
    def default_s(self) -> float:
        return next(f.default for f in fields(Timeouts) if f.name == self.field)  # type: ignore[return-value]


TIMEOUTS: tuple[TimeoutRow, ...] = (
    TimeoutRow(
        "rendezvous_s",
        "XLA_RUN_RENDEZVOUS_TIMEOUT",
        "--rendezvous-timeout",
        "all ranks must have arrived; then exit code 72, naming the absent",
    ),
    TimeoutRow(
        "notice_s",
        "XLA_RUN_NOTICE_AFTER",
        "--notice-after",
        "the first line that names the ranks still missing at the rendezvous",
    ),
    TimeoutRow("beat_s", "XLA_RUN_BEAT_EVERY", "--beat-every", "between two heartbeats"),
    TimeoutRow(
        *("lost_s", "XLA_RUN_LOST_AFTER", "--lost-after"),
        "a rank that sent no heartbeat this long is called silent, a connection is lost",
    ),
    TimeoutRow(
        *("reconnect_s", "XLA_RUN_RECONNECT_WITHIN", "--reconnect-within"),
        "a host whose connection is lost may come back; 0: it is lost with its connection",
    ),
    TimeoutRow(
        *("grace_s", "XLA_RUN_GRACE", "--grace"),
        "between SIGTERM and SIGKILL when the job has failed",
    ),
    TimeoutRow(
        "graceful_s",
        "XLA_RUN_GRACEFUL",
        "--graceful-stop",
        "between SIGTERM and SIGKILL when you stop the job",
    ),
    TimeoutRow(
        "exit_barrier_s",
        "XLA_RUN_EXIT_BARRIER",
        "--exit-barrier",
        "after the first rank has finished: for peers that wait for it, and for slow teardowns",
    ),
    TimeoutRow(
        "time_limit_s",
        "XLA_RUN_TIME_LIMIT",
        "--time-limit",
        "the whole job; then it is stopped as by SIGTERM, with exit code 124",
    ),
    TimeoutRow("hang_warn_s", "XLA_RUN_HANG_WARN", "--hang-warn", "no rank went on: a warning"),
    TimeoutRow(
        "hang_stacks_s",
        "XLA_RUN_HANG_STACKS",
        "--hang-stacks",
        "no rank went on: the stacks of all ranks into their logs",
    ),
    TimeoutRow(
        "hang_kill_s",
        "XLA_RUN_HANG_TIMEOUT",
        "--hang-timeout",
        "no rank went on: the job is killed with exit code 76",
    ),
)


def timeouts(environ: Environ, **given_s: float | None) -> Timeouts:
    """The timeouts: those given (flags; None counts as not given) over the variables over defaults.

    Raises:
        SettingError: a variable is no duration.
    """
    read = {
        row.field: parse_seconds(environ[row.variable], row.variable)
        for row in TIMEOUTS
        if environ.get(row.variable)
    }
    read.update({field: value for field, value in given_s.items() if value is not None})
    return replace(Timeouts(), **read)


# ---- single values ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable for the docs: its name, and what it says."""

    name: str
    meaning: str


VARIABLES: tuple[Variable, ...] = (
    Variable("PJRT_DEVICE", "TPU, CUDA, GPU or CPU; unset: the best there is"),
    Variable("PJRT_SELECT_DEFAULT_DEVICE", "0: with PJRT_DEVICE unset take the CPU, do not look"),
    Variable("CPU_NUM_DEVICES", "ranks per host on the CPU when nprocs is not given"),
    Variable("GPU_NUM_DEVICES", "at most this many GPUs of a host"),
    Variable("TPU_NUM_DEVICES", "at most this many TPU chips of a host"),
    Variable("XRT_DEVICE_MAP, XRT_WORKERS", "both set (before 2.1): run on the CPU"),
    Variable("XRT_TPU_CONFIG", "set (before 2.1): run on the TPU"),
    Variable("XRT_SHARD_ORDINAL, XRT_SHARD_WORLD_SIZE", "rank and ranks (before 2.1)"),
    Variable("PJRT_LOCAL_PROCESS_RANK, PJRT_LOCAL_PROCESS_COUNT", "local rank and local ranks"),
    Variable("RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE", "set by torchrun: one rank of it"),
    Variable("MASTER_ADDR, MASTER_PORT", "where another launcher's ranks meet; node 0 of --nnodes"),
    Variable("XLA_COORDINATOR_PORT", "the port of MASTER_ADDR where MASTER_PORT is unset (8547)"),
    Variable(
        "XDIST_TRANSPORT", "host, hosts, mesh or gloo: how ranks exchange, told in the first line"
    ),
    Variable("XLA_RUN_LOG_DIR", "where the logs of a job go; unset: a new directory per job"),
    Variable("XLA_RUN_STATE_DIR", "where `xla-run ps` looks for jobs; logs, shipped code go there"),
    Variable("XDG_RUNTIME_DIR", "records of jobs go there where XLA_RUN_STATE_DIR is unset"),
    Variable("XLA_RUN_JOB_ID, XLA_RUN_ATTEMPT, XLA_RUN_HOST_INDEX", "set in every rank of ours"),
    Variable("XLA_RUN_CONTROL", "in every rank of ours: its launcher's address; ssh:HOST, ..."),
    Variable("XLA_RUN_COORDINATOR, XLA_RUN_TASK", "set in every rank of ours, for the device"),
    Variable("XLA_RUN_SECRET", "what nodes of --nnodes know; ranks of ours have one of their own"),
    Variable("TORCHELASTIC_*", "set in every rank of ours, as torchrun sets them"),
    Variable("SLURM_*, OMPI_*, PMIX_NAMESPACE", "set by srun and mpirun; see `cluster.py`"),
    Variable("SLURM_JOB_ID, SLURM_JOB_NODELIST", "the job whose nodes --slurm runs on"),
    Variable("XLA_RUN_ADDRESS", "set for an agent on Ray: where other nodes reach its own"),
    Variable("SLURMD_NODENAME", "in a step of it: the name by which others reach this node"),
    Variable(
        "JOB_COMPLETION_INDEX, XLA_RUN_HOSTS", "set in a pod of a JobSet: which one of how many"
    ),
    Variable("MEGASCALE_NUM_SLICES", "several TPU slices, which `spawn` alone does not join"),
    Variable("XLA_RUN_SSH", "the command that reaches the hosts of --hosts; unset: ssh"),
    Variable("XLA_RUN_PREIMPORT", "what is imported once per host, before the ranks"),
    Variable("OMP_NUM_THREADS", "kept if set; else the rank's share of the host's cores"),
    Variable("CUDA_VISIBLE_DEVICES", "the GPUs that may be shared out to the ranks"),
    Variable("TPU_*", "the topology of a TPU slice; see `devices.py`"),
    Variable("XLA_RUN_NOTICES", "stop before the cloud takes a machine away; unset: on TPUs alone"),
    Variable("GCE_METADATA_HOST", "where it says so; unset: metadata.google.internal"),
    Variable("http_proxy, https_proxy, grpc_proxy, all_proxy", "`xla-run check` warns of them"),
)


def text(environ: Environ, name: str, default: str = "") -> str:
    """A variable with blanks stripped; empty counts as unset."""
    return environ.get(name, "").strip() or default


def integer(environ: Environ, name: str, *, least: int = 0) -> int | None:
    """A whole number of at least `least`, or None where the variable is unset.

    Raises:
        SettingError: it is no such number.
    """
    value = text(environ, name)
    if not value:
        return None
    try:
        number = int(value)
    except ValueError:
        number = least - 1
    if number < least:
        raise SettingError(
            f"{name}: {value!r} is no whole number from {least} up; correct or unset it"
        )
    return number


def flag(environ: Environ, name: str, default: bool = False) -> bool:
    """A switch as torch_xla reads it: true or a number other than 0 is on."""
    value = text(environ, name).lower()
    if not value:
        return default
    return value in ("true", "yes", "on") or (value.lstrip("-").isdigit() and int(value) != 0)


# torch imports its distributed tensors at the first operator of any tensor subclass, and dynamo at
# the first shape it infers in Python: once for all ranks instead of once in each.
PREIMPORTED = "torch,jax,torch_xla.core.xla_model,torch.distributed.tensor"


def preimported(environ: Environ) -> list[str]:
    """Modules to import once, before the ranks are forked; set but empty: none.

    They must start neither a thread nor a device while they are imported.
    """
    names = environ.get("XLA_RUN_PREIMPORT", PREIMPORTED).split(",")
    return [name.strip() for name in names if name.strip()]


def state_dir(environ: Environ) -> Path:
    """The directory that holds one record per job; `xla-run ps` reads it.

    XDG_RUNTIME_DIR comes before TMPDIR: it is the user's own, and the same in every shell and unit.
    """
    if named := text(environ, "XLA_RUN_STATE_DIR"):
        return Path(named).absolute()
    runtime = text(environ, "XDG_RUNTIME_DIR")
    if runtime and os.path.isdir(runtime) and os.access(runtime, os.W_OK):
        return Path(runtime) / "xla-run"
    return _scratch(environ)


def log_root(environ: Environ) -> tuple[Path, bool]:
    """Where the log folders of jobs go, and whether the user named that directory."""
    if named := text(environ, "XLA_RUN_LOG_DIR"):
        return Path(named).absolute(), True
    # Not below XDG_RUNTIME_DIR: that is memory.
    state = text(environ, "XLA_RUN_STATE_DIR")
    return (Path(state).absolute() if state else _scratch(environ)) / "logs", False


_PROXIES = ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy", "no_proxy", "no_grpc_proxy")
# Variables that the ranks of other hosts get as they are here. Not those that name a place or a
# device of this machine; what else is needed is named by --env.
_PASSED_ON = (
    *("XDIST_", "XLA_", "PJRT_", "JAX_", "TORCH", "NCCL_", "GLOO_", "LIBTPU_", "TF_CPP_"),
    *("PYTHON", "OMP_NUM_THREADS", "CPU_NUM_DEVICES"),
)
_KEPT_HERE = ("XLA_RUN_", "TORCHELASTIC_", "PYTHONHOME", "PYTHONEXECUTABLE")


def passed_on(environ: Environ) -> dict[str, str]:
    """What agents on other hosts are started with of this environment."""
    return {
        name: value
        for name, value in environ.items()
        if name == "XLA_RUN_PREIMPORT"
        or (name.startswith(_PASSED_ON) and not name.startswith(_KEPT_HERE))
    }


def ssh_command(environ: Environ) -> list[str]:
    """How other hosts are reached.

    Raises:
        SettingError: XLA_RUN_SSH is no command line.
    """
    command = text(environ, "XLA_RUN_SSH", "ssh")
    try:
        return shlex.split(command)
    except ValueError as error:
        raise SettingError(
            f"XLA_RUN_SSH: {command!r} is no command line ({error}); write it as for a shell"
        ) from None


def secret(environ: Environ) -> bytes:
    """What the user has set for all hosts of a job without a launcher to seal messages with.

    Raises:
        SettingError: it is no hexadecimal digits, or can be guessed.
    """
    try:
        return rank.secret_of(environ)
    except RankError as error:
        raise SettingError(str(error)) from None


def slurm_job(environ: Environ) -> tuple[str, str]:
    """The number of the Slurm job that this process is in, and its nodes as Slurm lists them.

    Both are "" where it is in none.
    """
    number = text(environ, "SLURM_JOB_ID")
    return (number, text(environ, "SLURM_JOB_NODELIST")) if number else ("", "")


def node_name(environ: Environ) -> str:
    """The name or address by which Ray or Slurm knows this machine; "" where they do not."""
    return text(environ, "XLA_RUN_ADDRESS") or text(environ, "SLURMD_NODENAME")


def ssh_address(environ: Environ) -> str:
    """The address of this machine to which the ssh session came that we run in; "" for none."""
    words = text(environ, "SSH_CONNECTION").split()
    return words[2] if len(words) == 4 else ""


def nodes_secret(environ: Environ) -> bytes:
    """What the nodes of a job prove to know; SettingError where there is none, or one to guess."""
    found = "it is not set"
    try:
        if value := rank.secret_of(environ):
            return value
    except RankError:
        found = "32 hexadecimal digits or more are needed"
    raise SettingError(
        f"XLA_RUN_SECRET: {found}; nodes know each other by it: make one (python -c "
        '"import secrets; print(secrets.token_hex(32))") and set the same on all nodes'
    )


def taken_secret() -> bytes:
    """That of this process, whose children get none of it: ranks have one of their own."""
    secret = nodes_secret(os.environ)
    del os.environ["XLA_RUN_SECRET"]
    return secret


def proxies(environ: Environ) -> dict[str, str]:
    """The variables that send gRPC, with which jax's ranks meet, to a proxy, and no_proxy."""
    return {name: value for name, value in environ.items() if value and name.lower() in _PROXIES}


def _scratch(environ: Environ) -> Path:
    folder = text(environ, "TMPDIR")
    return Path(folder or tempfile.gettempdir()) / f"xla-run-{os.getuid()}"


# ---- the names of older versions ---------------------------------------------------------------


def asked_device(environ: Environ) -> str:
    """The device kind asked for, upper case, "" for none: "TPU", "CUDA", "GPU", "CPU", ...

    A suffix after "_" only picks a client and is dropped, as torch_xla does. Before 2.1 the XRT_*
    variables said it.
    """
    kind = text(environ, "PJRT_DEVICE").split("_")[0].upper()
    if kind:
        return kind
    if text(environ, "XRT_TPU_CONFIG"):
        return "TPU"
    if text(environ, "XRT_DEVICE_MAP") and text(environ, "XRT_WORKERS"):
        return "CPU"
    return "" if flag(environ, "PJRT_SELECT_DEFAULT_DEVICE", True) else "CPU"


def asked_num_devices(environ: Environ, kind: str) -> int | None:
    """CPU_NUM_DEVICES, GPU_NUM_DEVICES or TPU_NUM_DEVICES for "CPU", "CUDA" or "GPU", "TPU"."""
    name = "GPU" if kind == "CUDA" else kind
    return integer(environ, f"{name}_NUM_DEVICES", least=1)
