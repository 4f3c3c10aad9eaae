"""The way to the workers of TPU VMs: gcloud passes our stdin on to its own ssh."""

from collections.abc import Mapping, Sequence

from torch_xdist.launcher.backends import tpu_vms
from torch_xdist.launcher.backends.ssh import shell_line
from torch_xdist.launcher.facts.errors import HostError
from torch_xdist.launcher.facts.host_list import Host

# What a shell ends with that cannot start a program, and ssh after a trouble of its own.
_NOT_STARTED, _SSH_FAILED = (126, 127), 255
_ERROR = "ERROR: (gcloud"
_OWN = (_ERROR, "WARNING: ", "SSH: ", "Retrying: ", "Connection to ", "client_loop: ", "ssh: ")


class Gcloud:
    """A `Way` by gcloud.

    Args:
        program: gcloud and where the TPUs are, such as ["gcloud", "--project=p", "--zone=z"].
    """

    advice = tpu_vms.ADVICE
    kills_all = True
    # It asks where the worker is before it begins to log in.
    tries_s: Sequence[float] = (12.0, 20.0)
    engine = ""

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
                done = tpu_vms.ask(f"host {host.name}", words)
                if done.returncode != 0:
                    why = self._why(
                        done.returncode, tpu_vms.lines_of(done.stderr) or ["it said nothing"]
                    )
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

    def _ssh(self, host: Host, words: Sequence[str]) -> list[str]:
        name = host.name.removesuffix(f"-w{host.worker}")
        destination = f"{host.user}@{name}" if host.user else name
        return [
            *(self._program, *tpu_vms.TPU_VM, "ssh", destination, f"--worker={host.worker}"),
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
