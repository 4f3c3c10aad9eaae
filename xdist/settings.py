"""Every environment variable the device reads, read here and nowhere else in this folder.

The variables are read once, when the first setting is asked for; `reread` reads them again (tests,
`xr.set_device_type`). The names are torch_xla's, so that old job scripts keep their meaning;
names that start with XDIST_ are ours. This module imports neither torch nor jax.
"""

import functools
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

DEFAULT_PERCENTILES = (0.01, 0.05, 0.1, 0.2, 0.5, 0.8, 0.9, 0.95, 0.99)
GRAPH_FORMATS = ("text", "dot", "hlo", "stablehlo")
_DEBUG_LEVEL_OF_DEBUG = 100
_LARGE_PAGES = "glibc.malloc.hugetlb="
_SPLITTING = "xla_cpu_multi_thread_eigen"


@dataclass(frozen=True, slots=True)
class Settings:
    """The environment as found. None stands for a variable that is not set."""

    # Devices
    platform: str | None  # PJRT_DEVICE as it stands: CPU, TPU, CUDA, ...
    cpu_devices: int | None  # CPU_NUM_DEVICES
    transport: str | None  # XDIST_TRANSPORT: how collectives travel, "host", "hosts", "mesh", ...
    # Other hosts and launchers
    master_address: str  # MASTER_ADDR: the host of rank 0
    # Behaviour
    sync_wait: bool  # XLA_SYNC_WAIT: every sync waits until the device is done
    eager: bool  # XLA_USE_EAGER_DEBUG_MODE and the older *_OPBYOP names
    fallback: str  # XDIST_FALLBACK: what an operator without a row does, "cpu" or "error"
    experimental: frozenset[str]  # XLA_EXPERIMENTAL: nonzero and masked_select stay on a CPU device
    trace_limit: int  # XLA_TRIM_GRAPH_SIZE: slots pending before a cut is forced
    cut_loops: bool  # XDIST_CUT_LOOPS: rounds of a loop that ends no step are run one by one
    always_all_reduce: bool  # XLA_ALWAYS_ALLREDUCE: also with one rank
    bucket_mb: int  # ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB
    async_closures: int  # XLA_MAX_ASYNC_QUEUE: step closures that may wait
    rate_smoothing: float  # RATE_TRACKER_SMOOTHING
    enumerate_batches: bool  # XDIST_ENUMERATE_BATCHES: DataParallel hands out (number, data)
    cache_size: int  # XLA_COMPILATION_CACHE_SIZE: programs kept in memory
    programs_mb: int  # XDIST_PROGRAMS_MB: host memory that those programs may hold
    heap_mb: int  # XDIST_HEAP_MB: freed memory that the process keeps, on a CPU
    cache_path: str | None  # XLA_PERSISTENT_CACHE_PATH; "" for no cache, None for the user's
    cache_disk_mb: int  # XDIST_PERSISTENT_CACHE_MB: what programs may take of the disk
    cache_read_only: bool  # XLA_PERSISTENT_CACHE_READ_ONLY
    check_indices: bool  # XDIST_CHECK_INDICES: those that came from the host
    early_results: bool  # XDIST_EARLY_RESULTS: on CPUs a step's loss is read before its end
    compute_once: bool  # XDIST_COMPUTE_ONCE: on a CPU torch computes programs that come once
    # Reports
    explain_recompiles: bool  # XDIST_EXPLAIN_RECOMPILES: say why a program is compiled again
    metrics_file: str | None  # XLA_METRICS_FILE: a path, STDOUT or STDERR
    metrics_samples: int  # XLA_METRICS_SAMPLES: how many samples of each metric are kept
    metrics_percentiles: tuple[float, ...]  # XLA_METRICS_PERCENTILES, 0.01:0.5:...
    graph_file: str | None  # XLA_SAVE_TENSORS_FILE
    graph_format: str  # XLA_SAVE_TENSORS_FMT: text, dot, hlo or stablehlo
    hlo_file: str | None  # XLA_SAVE_HLO_FILE: where programs go that fail
    hlo_in_errors: bool  # XLA_DUMP_HLO_GRAPH: their errors hold them too
    tracker_file: str | None  # XLA_FNTRACKER_FILE: where operators on the CPU are told
    tracker_level: int  # XLA_FNTRACKER_LEVEL: below 3 none are
    tracker_list: tuple[str, ...]  # XLA_FNTRACKER_LIST: only these, such as nonzero:unique
    debug: bool  # PT_XLA_DEBUG
    debug_level: int  # PT_XLA_DEBUG_LEVEL: 0 off, 1 compilations, 2 executions too
    debug_file: str | None  # PT_XLA_DEBUG_FILE
    debug_frames: int  # PT_XLA_DEBUG_MAX_FRAME
    dynamo_debug: bool  # XLA_DYNAMO_DEBUG: print what a captured graph became
    step_log: bool  # XLA_EMIT_STEPLOG: one line on stderr per sync


@functools.cache
def current() -> Settings:
    """The settings of this process, read from the environment on the first call."""
    return read(os.environ)


def reread() -> Settings:
    """Read the environment again and return the new settings."""
    current.cache_clear()
    return current()


def pjrt_device() -> str | None:
    """PJRT_DEVICE as it stands, None where it is not set."""
    return current().platform


def selects_platform() -> bool:
    """Whether a platform is looked for where none is named: not PJRT_SELECT_DEFAULT_DEVICE=0."""
    return os.environ.get("PJRT_SELECT_DEFAULT_DEVICE") != "0"


def cpu_num_devices() -> int | None:
    """CPU_NUM_DEVICES, None where it is not set."""
    return current().cpu_devices


def asks_for_eager() -> bool:
    """Whether a variable asks for eager mode, without fixing the other settings yet."""
    return any(_flag(os.environ, name) for name in _EAGER_NAMES)


def dumps_optimized() -> bool:
    """Whether HLO is printed as XLA optimized it: XLA_DUMP_POST_OPTIMIZATIONS, read each time."""
    return _flag(os.environ, "XLA_DUMP_POST_OPTIMIZATIONS")


def hlo_locations() -> bool:
    """Whether StableHLO texts say where operations come from: XLA_HLO_DEBUG, read each time."""
    return _flag(os.environ, "XLA_HLO_DEBUG")


def asks_for_notes() -> bool:
    """Whether a variable asks that rows know where they were recorded, without fixing the others.

    XLA_IR_DEBUG, or XLA_HLO_DEBUG; read until a device is used.
    """
    return _flag(os.environ, "XLA_IR_DEBUG") or _flag(os.environ, "XLA_HLO_DEBUG")


def asks_for_stablehlo() -> bool:
    """Whether StableHLO programs are counted: XLA_STABLEHLO_COMPILE, read each time."""
    return _flag(os.environ, "XLA_STABLEHLO_COMPILE")


def narrowed() -> Mapping[str, str]:
    """Which dtypes the device shall hold in a narrower one, read each time.

    DOWNCAST keeps float64 as float32.
    """
    env = os.environ
    found: dict[str, str] = {}
    for name, narrow in (("BF16", "bfloat16"), ("F16", "float16"), ("FP16", "float16")):
        if _flag(env, f"XLA_USE_{name}"):
            found |= {"float32": narrow, "float64": narrow}
        elif _flag(env, f"XLA_DOWNCAST_{name}"):
            found |= {"float32": narrow, "float64": "float32"}
    if _flag(env, "XLA_USE_32BIT_LONG"):
        found |= {"int64": "int32", "uint64": "uint32"}
    return found


def rehearsal() -> dict[str, Any]:
    """What this process is to rehearse, as `xla-run compile` wrote it: XDIST_REHEARSE; {} for none.

    "topology" by libtpu's name, "slices", "steps", "name" as the user calls it, and the path of the
    "report".
    """
    return dict(json.loads(os.environ.get("XDIST_REHEARSE") or "{}"))


def asks_for_spmd() -> bool:
    """Whether one logical device shall stand for all devices: XLA_USE_SPMD, read each time."""
    return _flag(os.environ, "XLA_USE_SPMD")


def ask_for_spmd(auto: bool) -> None:
    """Set XLA_USE_SPMD, and XLA_AUTO_SPMD, for this process and those it starts."""
    os.environ["XLA_USE_SPMD"] = "1"
    if auto:
        os.environ["XLA_AUTO_SPMD"] = "1"


def auto_spmd() -> tuple[int, ...] | None:
    """The mesh along which tensors are cut that nobody marked, (0,) for all devices in a row.

    None without XLA_AUTO_SPMD; XLA_AUTO_SPMD_MESH is such as "2,2". Both are read each time.
    """
    if not _flag(os.environ, "XLA_AUTO_SPMD"):
        return None
    text = os.environ.get("XLA_AUTO_SPMD_MESH") or "0"
    try:
        return tuple(int(size) for size in text.split(","))
    except ValueError as error:
        raise ValueError(f"XLA_AUTO_SPMD_MESH={text!r}: use sizes such as 2,2") from error


def set_platform(platform: str) -> None:
    """Make `platform` the PJRT_DEVICE of this process and of the processes it starts."""
    os.environ["PJRT_DEVICE"] = platform
    # Read at the next use: a script may set further variables after this and before a device.
    current.cache_clear()


def set_local_rank(local_rank: int, local_world_size: int) -> None:
    """Make this process one of the ranks of this host, by the variables launchers set."""
    for name, value in (("RANK", local_rank), ("WORLD_SIZE", local_world_size)):
        os.environ.setdefault(name, str(value))
        os.environ[f"LOCAL_{name}"] = str(value)
    reread()


def set_cache(path: str, read_only: bool) -> None:
    """Keep compiled programs in `path`, in this process and those it starts."""
    os.environ["XLA_PERSISTENT_CACHE_PATH"] = path
    os.environ["XLA_PERSISTENT_CACHE_READ_ONLY"] = "1" if read_only else "0"
    reread()


def user_cache_folder(name: str) -> str:
    """A folder of this name where the user's programs keep what can be made again.

    XDG_CACHE_HOME, which counts where it is absolute, or ~/.cache.
    """
    of_user = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(of_user):
        of_user = os.path.expanduser("~/.cache")
    return os.path.join(of_user, name)


def fit_to_one_core() -> None:
    """On a single core keep XLA from splitting operators over threads, which costs time there."""
    flags = os.environ.get("XLA_FLAGS", "")
    if len(os.sched_getaffinity(0)) == 1 and not is_flag_given(_SPLITTING):
        os.environ["XLA_FLAGS"] = f"{flags} --{_SPLITTING}=false".strip()


def is_flag_given(name: str) -> bool:
    """Whether the user's variables speak of a flag of XLA's; LIBTPU_INIT_ARGS are libtpu's own."""
    return any(name in os.environ.get(where, "") for where in ("XLA_FLAGS", "LIBTPU_INIT_ARGS"))


def tunes_malloc() -> bool:
    """Whether the user tunes glibc's allocator: by MALLOC_* variables or GLIBC_TUNABLES.

    That large pages are asked for, as the launcher does for its ranks, decides nothing else.
    """
    names = [name for name in os.environ if name.startswith("MALLOC_")]
    tunables = os.environ.get("GLIBC_TUNABLES", "").replace(_LARGE_PAGES, "")
    return bool(names) or "glibc.malloc" in tunables


def asks_for_large_pages() -> bool:
    """Whether GLIBC_TUNABLES ask for large pages."""
    return _LARGE_PAGES in os.environ.get("GLIBC_TUNABLES", "")


def read(env: Mapping[str, str]) -> Settings:
    """Parse an environment. Raises ValueError that names the variable it cannot read."""
    debug = _flag(env, "PT_XLA_DEBUG")
    return Settings(
        platform=env.get("PJRT_DEVICE") or None,
        cpu_devices=_number(env, "CPU_NUM_DEVICES", None, int),
        transport=_word(env, "XDIST_TRANSPORT", "", ("", "host", "hosts", "mesh", "gloo")) or None,
        master_address=env.get("MASTER_ADDR") or "127.0.0.1",
        sync_wait=_flag(env, "XLA_SYNC_WAIT"),
        eager=any(_flag(env, name) for name in _EAGER_NAMES),
        fallback=_word(env, "XDIST_FALLBACK", "cpu", ("cpu", "error")),
        experimental=frozenset(filter(None, env.get("XLA_EXPERIMENTAL", "").split(":"))),
        trace_limit=_number(env, "XLA_TRIM_GRAPH_SIZE", 100_000, int),
        always_all_reduce=_flag(env, "XLA_ALWAYS_ALLREDUCE"),
        bucket_mb=_number(env, "ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB", 0, int),
        async_closures=_number(env, "XLA_MAX_ASYNC_QUEUE", 100, int),
        rate_smoothing=_number(env, "RATE_TRACKER_SMOOTHING", 0.4, float),
        enumerate_batches=_flag(env, "XDIST_ENUMERATE_BATCHES"),
        cache_size=_number(env, "XLA_COMPILATION_CACHE_SIZE", 2048, int),
        programs_mb=_number(env, "XDIST_PROGRAMS_MB", 1000, int),
        heap_mb=_number(env, "XDIST_HEAP_MB", 1024, int),
        cache_path=env.get("XLA_PERSISTENT_CACHE_PATH"),
        cache_disk_mb=_number(env, "XDIST_PERSISTENT_CACHE_MB", 1000, int),
        cache_read_only=_flag(env, "XLA_PERSISTENT_CACHE_READ_ONLY"),
        cut_loops=_flag({"XDIST_CUT_LOOPS": "1", **env}, "XDIST_CUT_LOOPS"),
        check_indices=_flag({"XDIST_CHECK_INDICES": "1", **env}, "XDIST_CHECK_INDICES"),
        early_results=_flag({"XDIST_EARLY_RESULTS": "1", **env}, "XDIST_EARLY_RESULTS"),
        compute_once=_flag({"XDIST_COMPUTE_ONCE": "1", **env}, "XDIST_COMPUTE_ONCE"),
        explain_recompiles=_flag(
            {"XDIST_EXPLAIN_RECOMPILES": "1", **env}, "XDIST_EXPLAIN_RECOMPILES"
        ),
        metrics_file=env.get("XLA_METRICS_FILE") or None,
        metrics_samples=_number(env, "XLA_METRICS_SAMPLES", 1024, int),
        metrics_percentiles=_percentiles(env),
        graph_file=env.get("XLA_SAVE_TENSORS_FILE") or None,
        graph_format=_word(env, "XLA_SAVE_TENSORS_FMT", "text", GRAPH_FORMATS),
        hlo_file=env.get("XLA_SAVE_HLO_FILE") or None,
        hlo_in_errors=_flag(env, "XLA_DUMP_HLO_GRAPH"),
        tracker_file=env.get("XLA_FNTRACKER_FILE") or None,
        tracker_level=_number(env, "XLA_FNTRACKER_LEVEL", sys.maxsize, int),
        tracker_list=tuple(filter(None, env.get("XLA_FNTRACKER_LIST", "").split(":"))),
        debug=debug,
        debug_level=_number(env, "PT_XLA_DEBUG_LEVEL", _DEBUG_LEVEL_OF_DEBUG if debug else 0, int),
        debug_file=env.get("PT_XLA_DEBUG_FILE") or None,
        debug_frames=_number(env, "PT_XLA_DEBUG_MAX_FRAME", 8, int),
        dynamo_debug=_flag(env, "XLA_DYNAMO_DEBUG"),
        step_log=_flag(env, "XLA_EMIT_STEPLOG"),
    )


_EAGER_NAMES = (
    "XLA_USE_EAGER_DEBUG_MODE",
    "XLA_GET_TENSORS_OPBYOP",
    "XLA_SYNC_TENSORS_OPBYOP",
    "GET_TENSORS_OPBYOP",
    "SYNC_TENSORS_OPBYOP",
)


def _flag(env: Mapping[str, str], name: str) -> bool:
    """true/false, or a number that is zero or not, as torch_xla reads its switches."""
    text = env.get(name, "").strip()
    if text.lower() in ("", "false", "0"):
        return False
    if text.lower() == "true":
        return True
    return bool(_number(env, name, 0, int))


def _number(env: Mapping[str, str], name: str, default: Any, kind: Callable[[str], Any]) -> Any:
    text = env.get(name, "").strip()
    if not text:
        return default
    try:
        return kind(text)
    except ValueError:
        raise ValueError(
            f"environment: {name}={text!r} is not a number; set it to one, or unset it"
        ) from None


def _word(env: Mapping[str, str], name: str, default: str, allowed: tuple[str, ...]) -> str:
    word = env.get(name, "").strip().lower() or default
    if word not in allowed:
        raise ValueError(
            f"environment: {name}={word!r}; it may be {' or '.join(filter(None, allowed))}"
        )
    return word


def _percentiles(env: Mapping[str, str]) -> tuple[float, ...]:
    text = env.get("XLA_METRICS_PERCENTILES", "").strip()
    if not text:
        return DEFAULT_PERCENTILES
    try:
        found = tuple(float(part) for part in text.split(":"))
    except ValueError:
        found = ()
    if not found or not all(0 <= p < 1 for p in found):
        raise ValueError(
            f"environment: XLA_METRICS_PERCENTILES={text!r}; it needs fractions from 0 to below 1"
            " separated by colons, such as 0.01:0.5:0.99"
        )
    return found


def getenv_as(name: str, type: Callable[[Any], Any], defval: Any = None) -> Any:
    """A variable as `type`, or `defval` where it is not set. bool goes through int: 0 or 1."""
    text = os.environ.get(name)
    if text is None:
        return defval
    return bool(int(text)) if type is bool else type(text)


def check_env_flag(name: str, default: str = "") -> bool:
    """True where the variable says true, or a number above zero."""
    text = os.environ.get(name, default).strip()
    if text.lower() == "true":
        return True
    return text.isdecimal() and int(text) > 0
