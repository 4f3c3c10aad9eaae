"""Whether this torch and jax have what is needed: all of `hooks`, and what `patches` changes.

`require` asks before anything is registered, so that a release that does not fit is told in one
error instead of by whatever is missing first.
"""

import importlib
from typing import NamedTuple

from torch_xdist.errors import ReleaseError
from torch_xdist.releases import patch_table, patches, tested
from torch_xdist.releases.hooks import PROBES
from torch_xdist.releases.probe import Probe


class Finding(NamedTuple):
    """What a probe found."""

    probe: Probe
    is_there: bool

    @property
    def is_fatal(self) -> bool:
        """Whether the package cannot work like this."""
        return not self.is_there and not self.probe.otherwise


def _of_patch(patch: patch_table.Patch) -> Probe:
    path = patch.target.rpartition(".")[0] if patch.is_new else patch.target
    path = path.partition(".*")[0] if patch.is_marked else path
    return Probe(path, patch.why, patch.absent, when=patch.when)


def findings(moments: set[str] | None = None) -> list[Finding]:
    """Every probe of these moments, with what it found; None: of all, which imports torch's FSDP.

    A patch that was made counts as found.
    """
    needed = [patch for patch in patch_table.PATCHES if patch.is_needed]
    asked = [*PROBES, *map(_of_patch, needed)]
    return [
        Finding(probe, _is_there(probe))
        for probe in asked
        if moments is None or probe.when in moments
    ]


def require(moment: str = "import") -> None:
    """Raise one error that lists every hook of this moment that is missing.

    Raises:
        ReleaseError: at least one is missing, and nothing can stand in for it.
    """
    missing = [finding.probe for finding in findings({moment}) if finding.is_fatal]
    if missing:
        raise ReleaseError(_text(missing))


def _text(missing: list[Probe]) -> str:
    found = tested.installed()
    hooks = "".join(f"\n  {probe.path}: {probe.needed_for}" for probe in missing)
    pairs = ", ".join(f"torch {c.torch} with jax {c.jax} (Python {c.python})" for c in tested.CELLS)
    return (
        f"torch-xdist {found['torch-xdist']} does not fit torch {found['torch']} with jax "
        f"{found['jax']} on Python {found['python']}: {len(missing)} of what it needs of them is "
        f"missing:{hooks}\nTested are {pairs}; install one of these pairs. "
        "`python -m torch_xdist.doctor` prints what else belongs into a bug report."
    )


def _is_there(probe: Probe) -> bool:
    try:
        if probe.check is not None:
            return probe.check()
        return _looked_up(probe.path)
    except Exception:
        # Whatever a release raises here, the hook is not as it is needed.
        return False


def _looked_up(path: str) -> bool:
    if "*" in path:
        return patches.has(path)
    for _ in range(2):
        try:
            owner, name = next(patches.places(path))
            return hasattr(owner, name)
        except AttributeError:
            _import_towards(path)
    return False


def _import_towards(path: str) -> None:
    """Import the modules on a path that nobody has imported so far."""
    parts = path.split(".")
    for end in range(2, len(parts)):
        try:
            importlib.import_module(".".join(parts[:end]))
        except ImportError:
            return
