"""What a host says of itself: made by its agent on its own machine, sent in the agent's hello.

The head reads no other machine's cores or devices, and places ranks by these facts alone.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from torch_xdist.launcher.facts.devices import Found
from torch_xdist.launcher.facts.errors import ProtocolError
from torch_xdist.launcher.facts.settings import LOOPBACK, Environ
from torch_xdist.launcher.facts.tpu import Slice

# Of the messages between agents and their head.
VERSION = 6
_GRIDS = ("host_grid", "hosts_grid", "addresses")
# What `placement` and `devices` read of a host's environment.
_READ = (
    *("PJRT_", "XRT_", "TPU_", "CUDA_VISIBLE_DEVICES", "CPU_NUM_DEVICES", "GPU_NUM_DEVICES"),
    *("OMP_NUM_THREADS", "JAX_ENABLE_", "XDIST_TRANSPORT"),
)


@dataclass(frozen=True, slots=True)
class HostFacts:
    """One machine.

    `address` is where the ranks of other hosts reach it, `port` one that is free there, or 0
    where that is no address of it. `cores` are
    those its agent may use, neighbours side by side. `whole` is its TPU slice; where that cannot be
    told, `trouble` says why. `log_root` is where it keeps logs of its own, "" for nowhere, and then
    `why_no_logs` says why.
    """

    name: str = ""
    address: str = LOOPBACK
    port: int = 0
    cores: tuple[int, ...] = ()
    memory_bytes: int = 0
    found: Found = field(default_factory=lambda: Found({}, {}))
    environ: Mapping[str, str] = field(default_factory=dict)
    whole: Slice | None = None
    trouble: str = ""
    log_root: str = ""
    why_no_logs: str = ""

    def to_json(self) -> dict[str, Any]:
        """What `from_json` reads."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "HostFacts":
        """Read what `to_json` wrote.

        Raises:
            ProtocolError: it is something else.
        """
        try:
            whole = data["whole"]
            if whole is not None:
                grids = {key: tuple(whole[key]) for key in _GRIDS}
                whole = Slice(**{**whole, **grids})
            made = {**data, "cores": tuple(map(int, data["cores"])), "whole": whole}
            return cls(**{**made, "found": Found(**data["found"])})
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ProtocolError(f"facts of a host: they cannot be read: {error!r}") from error


def excerpt(environ: Environ) -> dict[str, str]:
    """The variables by which ranks are placed; nobody else's are sent to the head."""
    return {name: value for name, value in environ.items() if name.startswith(_READ)}


def refusal(hello: Mapping[str, Any]) -> str:
    """Why the head cannot work with the agent that says this; "" where it can."""
    if hello.get("version") == VERSION:
        return ""
    return (
        f"the agent speaks version {hello.get('version')} of the control plane, the head "
        f"version {VERSION}; install the same torch-xdist on all hosts"
    )


def names_text(names: Iterable[str]) -> str:
    """ "host a", "hosts a, b"."""
    told = list(names)
    return f"host{'s' * (len(told) > 1)} {', '.join(told)}"
