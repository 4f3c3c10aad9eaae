"""The way to the workers of TPU VMs: gcloud finds them, and passes our stdin on to its own ssh."""

import json
import math
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from torch_xdist.launcher.backends.ssh import shell_line
from torch_xdist.launcher.facts import tpu
from torch_xdist.launcher.facts.errors import DevicesError, HostError, UsageError
from torch_xdist.launcher.facts.host_list import Host

_TPU_VM = ("compute", "tpus", "tpu-vm")
_ANSWER_S = 120
# What a shell ends with that cannot start a program, and ssh after a trouble of its own.
_NOT_STARTED, _SSH_FAILED = (126, 127), 255
_ERROR = "ERROR: (gcloud"
_OWN = (_ERROR, "WARNING: ", "SSH: ", "Retrying: ", "Connection to ", "client_loop: ", "ssh: ")
_WHAT_TO_DO = {
    **dict.fromkeys(("CREATING", "STARTING", "RESTARTING", "REIMAGING"), "wait until it is"),
    **dict.fromkeys(("REPAIRING",), "wait until Google has repaired it"),
    **dict.fromkeys(("STOPPED", "STOPPING"), "start it: {program} start {name}"),
    **dict.fromkeys(("PREEMPTED", "TERMINATED", "DELETING"), "delete it and create it again"),
}


class Gcloud:
    """A `Way` by gcloud.

    Args:
        program: gcloud and where the TPUs are, such as ["gcloud", "--project=p", "--zone=z"].
    """

    advice = "install the Google Cloud CLI"
    kills_all = True
    # It asks where the worker is before it begins to log in.
    tries_s: Sequence[float] = (12.0, 20.0)

    def __init__(self, program: Sequence[str]) -> None:
        self._program, self._places = program[0], list(program[1:])
        self._is_prepared = False

    def prepare(self, hosts: Sequence[Host]) -> None:
        """Log in to the first worker of each TPU: gcloud makes and publishes keys only then.

        Raises:
            HostError: there is no gcloud, or no way there.
        """
        for host in hosts:
            if host.worker == 0 and len(hosts) > 1 and not self._is_prepared:
                words = self._ssh(host, ["true"])
                done = _run(f"host {host.name}", words)
                if done.returncode != 0:
                    why = self._why(done.returncode, _lines(done.stderr) or ["it said nothing"])
                    raise HostError(f"host {host.name}: {self._unreached(host, why)}")
        self._is_prepared = True

    def command(self, host: Host, words: Sequence[str]) -> list[str]:
        return self._ssh(host, words)

    def environ(self) -> Mapping[str, str] | None:
        return None

    def is_own(self, line: str) -> bool:
        return line.startswith(_OWN)

    def is_news(self, line: str) -> bool:
        return False

    def why_no_python(self, code: int | None, said: Sequence[str]) -> str:
        return said[-1] if code in _NOT_STARTED else ""

    def why_unreached(self, host: Host, code: int | None, said: Sequence[str]) -> str:
        if code != _SSH_FAILED and not any(line.startswith(_ERROR) for line in said):
            return ""
        return self._unreached(host, self._why(code, said))

    def why_lost(self, code: int | None, said: Sequence[str]) -> str:
        return self._why(code, said) if code == _SSH_FAILED else ""

    def workers(self, name: str, user: str = "") -> list[Host]:
        """The workers of a TPU that is ready, each with as many ranks as it has chips.

        Raises:
            HostError: gcloud does not say it, or the TPU is not ready.
            UsageError: the number of chips of its type is not known.
        """
        found = self._described(name)
        if (state := found.get("state")) != "READY":
            program = f"{self._program} {' '.join(_TPU_VM)}"
            todo = _WHAT_TO_DO.get(str(state), "look at it: {program} describe {name}")
            raise HostError(
                f"TPU {name} is {state}, and READY is needed; "
                f"{todo.format(program=program, name=name)}"
            )
        endpoints = found.get("networkEndpoints") or []
        if not endpoints:
            raise HostError(f"TPU {name} is READY without networkEndpoints; create it again")
        slots = _chips_per_host(name, found, len(endpoints))
        return [
            Host(f"{name}-w{index}", user, slots=slots, worker=index)
            for index in range(len(endpoints))
        ]

    def _described(self, name: str) -> Mapping[str, Any]:
        words = [self._program, *_TPU_VM, "describe", name, *self._places, "--format=json"]
        done = _run(f"TPU {name}", words)
        if done.returncode != 0:
            told = (_lines(done.stderr) or [f"it ended with code {done.returncode}"])[-1]
            raise HostError(
                f"TPU {name}: gcloud cannot describe it: {told}; --zone and --project say where "
                "it is"
            )
        try:
            return dict(json.loads(done.stdout))
        except (TypeError, ValueError) as error:
            raise HostError(
                f"TPU {name}: the answer of `gcloud ... describe` cannot be read ({error}); it "
                f"begins with {done.stdout[:40]!r}"
            ) from error

    def _ssh(self, host: Host, words: Sequence[str]) -> list[str]:
        name = host.name.removesuffix(f"-w{host.worker}")
        destination = f"{host.user}@{name}" if host.user else name
        return [
            *(self._program, *_TPU_VM, "ssh", destination, f"--worker={host.worker}"),
            # Without it a question of gcloud's would read what is meant for the agent.
            *(*self._places, "--quiet", f"--command={shell_line(words)}"),
        ]

    def _unreached(self, host: Host, why: str) -> str:
        by_hand = " ".join(self._ssh(host, ["true"])[:-2])
        return f"gcloud cannot reach it: {why}; try `{by_hand}` by hand"

    def _why(self, code: int | None, said: Sequence[str]) -> str:
        """gcloud's own error, else the last line of its ssh."""
        errors = [line for line in said if line.startswith(_ERROR)]
        of_ssh = [line for line in said if not line.startswith(("Retrying: ", "SSH: "))]
        return (errors or of_ssh or list(said))[-1]


def _chips_per_host(name: str, found: Mapping[str, Any], workers: int) -> int:
    topology = (found.get("acceleratorConfig") or {}).get("topology", "")
    kind = str(found.get("acceleratorType", ""))
    try:
        if topology:
            return max(1, math.prod(tpu.parse_grid(topology)) // workers)
        return tpu.slice_of(kind, 0, [""] * workers).chips_per_host
    except DevicesError as error:
        raise UsageError(f"TPU {name}: {error}") from None


def _run(where: str, words: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    """Ask gcloud something.

    Raises:
        HostError: it is not there, or does not answer.
    """
    try:
        return subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_S,
            check=False,
        )
    except OSError as error:
        raise HostError(
            f"{where}: {words[0]} cannot be started here ({error.strerror}); {Gcloud.advice}"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise HostError(
            f"{where}: gcloud has not answered in {_ANSWER_S} s; try by hand: {' '.join(words)}"
        ) from error


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]
