"""What is wrong with hosts, from what they have answered: pure.

A trouble is an error where a job could not run, or would not be the same program on all hosts; else
a warning. Of what must be alike the majority is right; of two halves the one with the first host.
"""

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch_xdist.launcher.facts import placement
from torch_xdist.launcher.facts.errors import ExitCode, LauncherError
from torch_xdist.launcher.facts.host import HostFacts
from torch_xdist.launcher.facts.host_list import Host
from torch_xdist.launcher.facts.job import Job
from torch_xdist.launcher.preflight import judge_ways
from torch_xdist.launcher.preflight.inquiry import Answer
from torch_xdist.launcher.preflight.trouble import Trouble, others_text

_MOST_CLOCK_S = 1.0
_LEAST_LOG_BYTES = 1 << 30
_LEAST_SHARED_BYTES = 256_000_000
_LEAST_OPEN_FILES = 1024
# What differs in these makes other programs, or messages that the other side cannot read.
_MUST_BE_ALIKE = {"torch": "torch", "jax": "jax", "jaxlib": "jax", "libtpu": "libtpu"}
_MUST_BE_ALIKE |= {"torch-xdist": "xdist"}
_MUST_BE_THERE = ("torch", "jax", "jaxlib")


@dataclass(frozen=True, slots=True)
class Plan:
    """What the hosts are judged for.

    Args:
        job: its hosts and ranks, the device that is asked for, its variables.
        limit_s: how long the hosts had.
    """

    job: Job
    limit_s: float

    @property
    def comes_by_itself(self) -> bool:
        """Whether each host was started by the user."""
        return self.job.way == "nodes"

    @property
    def other_environment(self) -> str:
        """How a host gets another Python environment than the one it was asked in."""
        if self.comes_by_itself:
            return "start the xla-run of another environment there"
        return "name another environment by --python"

    @property
    def other_address(self) -> str:
        """How a host gets another address; "" is for its name in a host file."""
        if self.comes_by_itself:
            return "give all nodes a --master-addr in a network that connects them all"
        return ""


def troubles(answers: Sequence[Answer], plan: Plan) -> list[Trouble]:
    """Everything that is wrong: errors first, each in the order of the hosts."""
    found = [*_absent(answers, plan)]
    here = [one for one in answers if one.is_here and not one.refusal]
    found += _versions(here, plan.other_environment)
    found += _code(here)
    found += _devices(here, plan.job, _hosts(answers, plan))
    found += _clocks(here)
    able = [one for one in answers if one.is_here]
    found += judge_ways.troubles(able, answers, plan.other_address)
    for one in here:
        found += _machine(one, alone=len(answers) == 1)
    return sorted(found, key=lambda trouble: trouble.is_warning)


def exit_code(found: Sequence[Trouble]) -> int:
    """0 where a job could run."""
    codes = [trouble.exit_code for trouble in found if not trouble.is_warning]
    return int(max(codes, default=0))


def _absent(answers: Sequence[Answer], plan: Plan) -> Iterator[Trouble]:
    limit = f"{plan.limit_s:g} s"
    for one in answers:
        if one.refusal:
            yield Trouble(one.name, "login", f"host {one.name}: {one.refusal}")
        if one.gone:
            text = one.gone if one.came_s is None else f"host {one.name} was lost: {one.gone}"
            yield Trouble(one.name, "login", text, exit_code=one.gone_code)
        elif one.facts is None and one.came_s is None:
            text = (
                f"host {one.name}: no answer within {limit}; "
                f"{'look at it' if plan.comes_by_itself else 'try ssh by hand'}, or give it more "
                "time with --limit"
            )
            yield Trouble(one.name, "login", text, exit_code=ExitCode.HOST)
        elif one.facts is None:
            text = (
                f"host {one.name}: it answered after {one.came_s:.1f} s, and then nothing came "
                f"within {limit}; look what hangs there, or give it more time with --limit"
            )
            yield Trouble(one.name, "login", text, exit_code=ExitCode.HOST)


# ---- what must be alike -------------------------------------------------------------------------


def _versions(here: Sequence[Answer], other: str) -> Iterator[Trouble]:
    versions = {one.name: _part(one, "versions") for one in here if _part(one, "versions")}
    for package in _MUST_BE_THERE:
        absent = [name for name, found in versions.items() if not found[package]]
        if absent and len(absent) == len(versions):
            for name in absent:
                text = f"host {name}: {package} is not installed there; install torch-xdist's needs"
                yield Trouble(name, _MUST_BE_ALIKE[package], text)
    for package, column in {"python": "python", **_MUST_BE_ALIKE, "numpy": ""}.items():
        told = {name: found[package] for name, found in versions.items()}
        yield from _differing(told, package, column, other)


def _differing(told: Mapping[str, str], package: str, column: str, other: str) -> Iterator[Trouble]:
    right = _majority(list(told.values()))
    with_it = [name for name, version in told.items() if version == right]
    for name, version in told.items():
        if version == right:
            continue
        # Bytes of a function are read by the same minor release of Python.
        same_minor = package == "python" and version.split(".")[:2] == right.split(".")[:2]
        there = f"{package} {version} is there" if version else f"{package} is not there"
        text = (
            f"host {name}: {there}, but {right or 'none'} on {others_text(with_it)}; install the "
            f"same on all hosts, or {other}"
        )
        yield Trouble(name, column, text, is_warning=same_minor or package == "numpy")


def _code(here: Sequence[Answer]) -> Iterator[Trouble]:
    told = {one.name: _part(one, "code") for one in here if _part(one, "code")}
    for name, code in told.items():
        if "why_not" in code:
            text = f"host {name}: {code['why_not']}; copy the code to the same path on all hosts"
            yield Trouble(name, "code", text)
    told = {name: code for name, code in told.items() if "files" in code}
    for path in dict.fromkeys(path for code in told.values() for path in code["files"]):
        hashes = {name: code["files"].get(path, "") for name, code in told.items()}
        right = _majority(list(hashes.values()))
        with_it = [name for name, found in hashes.items() if found == right]
        for name, found in hashes.items():
            if found != right:
                text = f"host {name}: {path} {_difference(found, right, with_it)}"
                yield Trouble(name, "code", f"{text}; copy the same code to all hosts")


def _difference(found: str, right: str, with_it: Sequence[str]) -> str:
    """How a file differs from what it is on other hosts, by its hashes; "": it is not there."""
    if not found:
        return f"is not there, but on {others_text(with_it)}"
    if not right:
        return f"is there ({found}), but not on {others_text(with_it)}"
    return f"is another one there ({found}) than on {others_text(with_it)} ({right})"


def _devices(here: Sequence[Answer], job: Job, hosts: Mapping[str, Host]) -> Iterator[Trouble]:
    """As the head of the job would judge them, and who holds them."""
    every = {
        one.name: HostFacts.from_json(_part(one, "host")) for one in here if _part(one, "host")
    }
    kinds: dict[str, list[str]] = {}
    for one in here:
        if one.name not in every:
            continue
        own = [hosts[one.name]] if hosts else []
        ranks = sum(host.slots for host in own) or job.nprocs
        try:
            choice = placement.device_of(
                replace(job, nprocs=ranks, hosts=own), [one.name], [every[one.name]]
            )
        except LauncherError as error:
            yield Trouble(one.name, "devices", str(error))
            continue
        kinds.setdefault(choice.kind, []).append(one.name)
        yield from _held(one, choice.kind)
        for why in (_part(one, "tpu") or []) if choice.kind == "TPU" else []:
            yield Trouble(one.name, "devices", f"host {one.name}: {why}")
    if len(kinds) > 1:
        told = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in kinds.items())
        text = (
            f"the hosts have different devices ({told}); leave some out, or let all use the CPU "
            "with PJRT_DEVICE=CPU"
        )
        yield Trouble("", "devices", text)


def _held(one: Answer, kind: str) -> Iterator[Trouble]:
    for holder in _part(one, "holders") or []:
        if holder["kind"] != kind:
            continue
        used = f" with {holder['used_mib']} MiB" if holder.get("used_mib") else ""
        text = (
            f"host {one.name}: {holder['device']} is held by process {holder['pid']}{used} "
            f"({holder['command']}); end it, or wait for its end"
        )
        # A TPU chip has one owner; GPUs can be shared where memory is left.
        yield Trouble(one.name, "devices", text, is_warning=kind != "TPU")


def _clocks(here: Sequence[Answer]) -> Iterator[Trouble]:
    """Against the middle of all, this machine among them: one clock that is wrong is told once."""
    told = {one.name: one.clock_s for one in here if one.clock_s is not None}
    if not told:
        return
    middle = statistics.median([0.0, *told.values()]) if len(told) > 1 else 0.0
    for one in here:
        if one.clock_s is None:
            continue
        ahead_s = one.clock_s - middle
        if abs(ahead_s) - one.clock_error_s > _MOST_CLOCK_S:
            word = "ahead" if ahead_s > 0 else "behind"
            text = (
                f"host {one.name}: its clock is {abs(ahead_s):.1f} s {word}; the times in its logs "
                "are wrong by that; set it, or start a time service (NTP) there"
            )
            yield Trouble(one.name, "clock", text, is_warning=True)


# ---- one machine --------------------------------------------------------------------------------


def _machine(one: Answer, *, alone: bool) -> Iterator[Trouble]:
    yield from _unmeasured(one)
    yield from _storage(one)
    limits = _part(one, "limits")
    if limits and (limits["open_files"] or _LEAST_OPEN_FILES) < _LEAST_OPEN_FILES:
        text = (
            f"host {one.name}: a process may open {limits['open_files']} files, fewer than "
            f"{_LEAST_OPEN_FILES}; raise it with `ulimit -n`, or in its limits.conf"
        )
        yield Trouble(one.name, "files", text, is_warning=True)
    proxies = _part(one, "proxies") or {}
    sent = sorted(name for name in proxies if not name.lower().startswith("no_"))
    if sent and not alone:
        text = (
            f"host {one.name}: {', '.join(sent)} set; what ranks say to each other by gRPC may go "
            "to that proxy; unset it there, or name the hosts' addresses in no_proxy"
        )
        yield Trouble(one.name, "", text, is_warning=True)


def _unmeasured(one: Answer) -> Iterator[Trouble]:
    facts = one.facts or {}
    told = dict.fromkeys(facts.get("slow", []), "no answer in time")
    for name, why in {**told, **facts.get("failed", {})}.items():
        column, what = _PARTS[name]
        text = f"host {one.name}: {what} could not be found out there: {why}; look what is wrong"
        # Without its cores and devices no rank could be placed.
        yield Trouble(one.name, column, text, is_warning=name != "host")


# Of each part of a host's facts: its column, and what it is.
_PARTS = {
    "host": ("devices", "its cores and devices"),
    "versions": ("python", "what is installed"),
    "disk": ("disk", "the room for logs"),
    "shared_memory": ("shm", "the room in /dev/shm"),
    "limits": ("files", "its limits"),
    "proxies": ("", "its proxy variables"),
    "holders": ("devices", "who holds its devices"),
    "tpu": ("devices", "whether libtpu could start"),
    "code": ("code", "the code of the command"),
}


def _storage(one: Answer) -> Iterator[Trouble]:
    disk, memory = _part(one, "disk"), _part(one, "shared_memory")
    if disk and not disk["has_cwd"]:
        text = (
            f"host {one.name}: there is no directory {disk['cwd']}, where its ranks would start; "
            "make it there, or start xla-run in one that all hosts have"
        )
        yield Trouble(one.name, "code", text)
    if disk and disk["free_bytes"] < _LEAST_LOG_BYTES:
        text = (
            f"host {one.name}: {disk['free_bytes'] / 1e6:.0f} MB are free for logs in "
            f"{disk['logs']}, less than 1 GB; make room, or name another place by --log-dir"
        )
        yield Trouble(one.name, "disk", text, is_warning=True)
    host = _part(one, "host") or {}
    if disk and not host.get("log_root", "x") and host.get("why_no_logs") != "the head keeps them":
        text = f"host {one.name}: no logs would be kept there: {host['why_no_logs']}"
        yield Trouble(one.name, "disk", text, is_warning=True)
    if memory and memory["free_bytes"] < _LEAST_SHARED_BYTES:
        text = (
            f"host {one.name}: {memory['free_bytes'] / 1e6:.0f} MB are free in /dev/shm, less than "
            f"{_LEAST_SHARED_BYTES / 1e6:.0f} MB; loaders with workers need it: remove what lies "
            "there, or make it larger (docker run --shm-size)"
        )
        yield Trouble(one.name, "shm", text, is_warning=True)


def _part(one: Answer, name: str) -> Any:
    return (one.facts or {}).get(name)


def _hosts(answers: Sequence[Answer], plan: Plan) -> dict[str, Host]:
    """The hosts by the names of their answers; none where this machine alone was asked."""
    return dict(zip((one.name for one in answers), plan.job.hosts, strict=False))


def _majority(values: Sequence[str]) -> str:
    """The most frequent one; of several the one that comes first."""
    return Counter(values).most_common(1)[0][0] if values else ""
