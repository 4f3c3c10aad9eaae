"""The report as lines for people: what is wrong comes first."""

from collections.abc import Iterator, Mapping
from typing import Any

from torch_xdist.doctor.report import is_fit, missing

_GIB = 2**30


def as_text(found: Mapping[str, Any]) -> str:
    """The whole report."""
    return "\n".join([*_verdict(found), *_releases(found), *_hooks(found["hooks"]), *_rest(found)])


def _verdict(found: Mapping[str, Any]) -> Iterator[str]:
    if is_fit(found):
        yield "The installation fits, and the device computes."
        return
    yield "The installation does not fit:"
    for name in ("hooks", "devices"):
        if "error" in found[name]:
            yield f"  {name}: {_indented(found[name]['error'])}"
    for hook in missing(found["hooks"].get("found", [])):
        yield f"  missing: {hook['hook']}, for: {hook['needed_for']}"
    if not found["devices"].get("found", {"works": True})["works"]:
        yield "  devices: a product of two matrices of ones is wrong"


def _releases(found: Mapping[str, Any]) -> Iterator[str]:
    yield ""
    for name, version in found["releases"].items():
        yield f"{name:<14}{version}"
    yield f"{'platform':<14}{found['platform']}"
    cell = found["tested"]
    told = f"yes, cell {cell}" if cell else "not together; docs/versions.md lists what was"
    yield f"{'tested':<14}{told}"


def _hooks(hooks: Mapping[str, Any]) -> Iterator[str]:
    yield ""
    if "error" in hooks:
        yield "hooks: not asked, see above"
        return
    all_hooks = hooks["found"]
    yield f"hooks: {sum(h['there'] for h in all_hooks)} of {len(all_hooks)} are there"
    for hook in all_hooks:
        if not hook["there"] and hook["otherwise"]:
            yield f"  not there, not needed: {hook['hook']} ({hook['otherwise']})"


def _rest(found: Mapping[str, Any]) -> Iterator[str]:
    yield ""
    for name in ("devices", "ranks"):
        part = found[name]
        if "error" in part:
            yield f"{name}: {_indented(part['error'])}"
            continue
        facts = part["found"].items()
        yield f"{name}: " + ", ".join(f"{key} {_shown(value)}" for key, value in facts)
    yield "machine: " + ", ".join(
        f"{_named(key)} {_sized(key, value)}" for key, value in found["machine"].items()
    )
    yield "variables:" if found["variables"] else "variables: none of ours is set"
    for name, value in found["variables"].items():
        yield f"  {name}={value}"


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _named(key: str) -> str:
    return key.removesuffix("_bytes").replace("_", " ")


def _sized(key: str, value: Any) -> str:
    if value is None:
        return "unlimited or unknown"
    return f"{value / _GIB:.1f} GiB" if key.endswith("_bytes") else f"{value:g}"


def _indented(text: str) -> str:
    return text.replace("\n", "\n    ")
