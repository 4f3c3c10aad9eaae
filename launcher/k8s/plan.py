"""What a job on Kubernetes is to be: the pods, their command and variables. Pure, and checked."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch_xdist.launcher.facts.errors import ExitCode, UsageError

# Every pod has an address of its own, so no other job is in the way.
PORT = 29500
# Stands in `Plan.argv` for the number of the pod; no command line can hold it.
NODE_RANK = "\0"
# As Kubernetes names what it makes of the JobSet: NAME-workers-0-INDEX-abcde, a DNS label.
_LONGEST_LABEL = 63
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|[kMGTPE]|[KMGTPE]i)?")
_TOPOLOGY = re.compile(r"[1-9][0-9]*(x[1-9][0-9]*){1,2}")
# How often pods are started again that Kubernetes took away or lost, where nothing is said.
LOSSES = 10
# Between the end of the ranks' own grace and the SIGKILL of the kubelet.
_MORE_GRACE_S = 30
_MOST_GRACE_S = 24 * 3600
# What another attempt may mend although nothing is said: a lost host, a preemption, a SIGTERM.
_TAKEN_AWAY = (int(ExitCode.HOST), 75, 143)
# What another attempt would only repeat. 126 to 128: the command cannot be started.
_HOPELESS = (
    int(ExitCode.USAGE),
    int(ExitCode.INTERNAL),
    int(ExitCode.PREFLIGHT),
    int(ExitCode.RENDEZVOUS),
    int(ExitCode.DUPLICATE),
    int(ExitCode.HANG),
    int(ExitCode.RESTARTS_USED_UP),
    int(ExitCode.TIME_LIMIT),
    *(126, 127, 128),
)


@dataclass(frozen=True)
class Plan:
    """A JobSet of `nodes` pods that each run `argv`.

    `env` and `secrets` are variables for all ranks; the latter stand in a Secret. `shm_size`, `cpu`
    and `memory` are quantities such as 8, 500m, 16Gi ("" for none); `tpu_topology` is that of the
    whole slice, such as 2x4. `max_restarts` is None where nothing was asked for: then pods that
    were lost are started again, and failures are not. `graceful_s` is the time of a stop.
    """

    name: str
    image: str
    nodes: int
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    namespace: str = ""
    gpus: int = 0
    tpu_accelerator: str = ""
    tpu_topology: str = ""
    cpu: str = ""
    memory: str = ""
    shm_size: str = "8Gi"
    max_restarts: int | None = None
    graceful_s: float = 30.0

    @property
    def secret_name(self) -> str:
        return f"{self.name}-xla-run"

    @property
    def tpu_chips(self) -> int:
        """Of one pod; 0 without TPUs."""
        if not self.tpu_topology:
            return 0
        return math.prod(map(int, self.tpu_topology.split("x"))) // self.nodes

    @property
    def restarts(self) -> int:
        return LOSSES if self.max_restarts is None else self.max_restarts

    @property
    def grace_s(self) -> int:
        """Whole seconds that a pod has between SIGTERM and SIGKILL."""
        return math.ceil(min(self.graceful_s + _MORE_GRACE_S, _MOST_GRACE_S))

    def final_codes(self) -> tuple[str, tuple[int, ...]]:
        """Exit codes of a pod that end the job: ("In" or "NotIn", the codes)."""
        if self.max_restarts is None:
            return "NotIn", _TAKEN_AWAY
        return "In", _HOPELESS

    def check(self) -> "Plan":
        """The plan itself.

        Raises:
            UsageError: Kubernetes could not take it.
        """
        check_name(self.name, self.nodes)
        if self.namespace and not _NAMESPACE.fullmatch(self.namespace):
            raise UsageError(
                f"--namespace {self.namespace!r}: a namespace has lower-case letters, digits and "
                "'-'; see those there are: kubectl get namespaces"
            )
        if not self.image or any(c.isspace() for c in self.image):
            raise UsageError(
                f"--image {self.image!r}: the image that the pods run is needed, such as "
                "registry.example/team/train:7, with torch-xdist and your script in it"
            )
        for option in ("cpu", "memory", "shm_size"):
            value = getattr(self, option)
            if value and not _QUANTITY.fullmatch(value):
                raise UsageError(
                    f"--{option.replace('_', '-')} {value!r}: a quantity of Kubernetes is needed, "
                    "such as 8, 500m or 16Gi"
                )
        self._check_tpus()
        for word in (*self.argv, *self.env.values(), *self.secrets.values(), self.image):
            _check_text(word)
        return self

    def _check_tpus(self) -> None:
        if bool(self.tpu_accelerator) != bool(self.tpu_topology):
            raise UsageError(
                "--tpu-accelerator and --tpu-topology go together, such as "
                "--tpu-accelerator tpu-v5-lite-podslice --tpu-topology 2x4"
            )
        if not self.tpu_topology:
            return
        if self.gpus:
            raise UsageError("--gpus-per-node and --tpu-topology: a pod has one or the other")
        if not _TOPOLOGY.fullmatch(self.tpu_topology):
            raise UsageError(
                f"--tpu-topology {self.tpu_topology!r}: that of a slice is needed, such as 2x4 "
                "or 2x2x2"
            )
        chips = math.prod(map(int, self.tpu_topology.split("x")))
        if chips % self.nodes:
            raise UsageError(
                f"--tpu-topology {self.tpu_topology}: {chips} chips on --nodes {self.nodes} are "
                "not equally many on each; give the number of hosts that the slice has"
            )


def command(
    name: str, nodes: int, program: Sequence[str], options: Sequence[str], words: Sequence[str]
) -> tuple[str, ...]:
    """`Plan.argv` for a job of this name.

    Args:
        program: what is xla-run in the image.
        options: those that it gets beside the ones which join the pods.
        words: the command of the ranks.
    """
    which = ["--nnodes", str(nodes), "--node-rank", NODE_RANK]
    # The name of pod 0, which stays as it is when the pods are started again.
    meeting = ["--master-addr", f"{name}-workers-0-0.{name}", "--master-port", str(PORT)]
    return (*program, *which, *meeting, *options, "--", *words)


def check_name(name: str, nodes: int = 1) -> str:
    """The name itself, where a JobSet can have it.

    Raises:
        UsageError: it cannot.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"--k8s {name!r}: the name of a job has lower-case letters, digits and '-', a letter "
            "first and no '-' last"
        )
    made = f"{name}-workers-0-{nodes - 1}-abcde"
    if len(made) > _LONGEST_LABEL:
        raise UsageError(
            f"--k8s {name!r}: it has {len(name)} characters, and the pods' names would have more "
            f"than {_LONGEST_LABEL}; at most {_LONGEST_LABEL - len(made) + len(name)} fit"
        )
    return name


def _check_text(word: str) -> None:
    try:
        word.encode()
    except UnicodeEncodeError:
        raise UsageError(
            f"--k8s: {word!r} is no UTF-8, and a manifest holds nothing else; name it otherwise"
        ) from None
