"""Hardware that a PJRT library of the user's brings: what it must say, and how JAX learns of it."""

import importlib.metadata
import importlib.util
import json
import os
import tempfile
from collections.abc import MutableMapping
from typing import Any

from torch_xdist.system import tpu_host
from torch_xdist.system.rank import Rank

# What JAX reads when its backend starts: NAME:PATH,... where a path may be of a JSON description.
_VARIABLE = "PJRT_NAMES_AND_LIBRARY_PATHS"


class DevicePlugin:
    """Base class of device plugins. The defaults mean one host with one device.

    Source: `torch_xla.experimental.plugins`.
    """

    def library_path(self) -> str:
        """Where the PJRT library is."""
        raise NotImplementedError(
            f"{type(self).__name__}.library_path: say where the plugin's PJRT library is"
        )

    def host_index(self) -> int:
        """Which of the job's hosts this is."""
        return 0

    def configure_single_process(self) -> None:
        """Prepare this process to be a job of its own."""
        raise NotImplementedError(
            f"{type(self).__name__}.configure_single_process: set the variables of the hardware"
            " that give this process one device"
        )

    def configure_multiprocess(self, local_rank: int, local_world_size: int) -> None:
        """Prepare this process to be a rank, before the backend starts."""

    def physical_chip_count(self) -> int:
        """How many ranks this host shall have."""
        return 1

    def client_create_options(self) -> dict[str, Any]:
        """Options of the PJRT client."""
        return {}

    def requires_xla_coordinator(self) -> bool:
        """Whether ranks must meet before the backend starts; ours always do."""
        return False


# By the name that PJRT_DEVICE selects them with, in capitals.
REGISTERED: dict[str, DevicePlugin] = {}
_descriptions: list[Any] = []


def tell_jax(name: str, here: Rank, environ: MutableMapping[str, str] = os.environ) -> str:
    """Prepare a plugin's platform, before JAX's backend starts; returns JAX's name of it."""
    plugin = REGISTERED[name]
    if here.world_size > 1:
        plugin.configure_multiprocess(here.local_rank, here.local_world_size)
    known = name.lower()
    others = [
        e for e in environ.get(_VARIABLE, "").split(",") if e and not e.startswith(f"{known}:")
    ]
    environ[_VARIABLE] = ",".join([*others, f"{known}:{_described(plugin)}"])
    return known


def _described(plugin: DevicePlugin) -> str:
    """The library, or where its options are a file that names both."""
    path, options = plugin.library_path(), plugin.client_create_options()
    if not options:
        return path
    # It is removed when the process ends.
    file = tempfile.NamedTemporaryFile("w", prefix="pjrt-", suffix=".json")  # noqa: SIM115
    json.dump({"library_path": path, "create_options": options}, file)
    file.flush()
    _descriptions.append(file)
    return file.name


def leave_only_the_cpu() -> bool:
    """Whether JAX could find nothing else, and libtpu is installed, as for `xla-run compile`.

    It would look for a TPU all the same, and say in five lines that there is none.
    """
    return (
        importlib.util.find_spec("libtpu") is not None
        and not REGISTERED
        and not tpu_host.may_have_chips()
        and importlib.util.find_spec("jax_plugins") is None
        and not importlib.metadata.entry_points(group="jax_plugins")
    )
