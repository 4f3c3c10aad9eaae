"""The manifest of a job: lines of YAML to read, keep and edit, each with why it is there. Pure.

Only scalars from `quoted` are put into the lines, which no text of a user's can leave. In the words
of a command and in variables Kubernetes replaces `$(NAME)`, so theirs is doubled (`unexpanded`).
"""

import json
import re
from collections.abc import Mapping

from torch_xdist.launcher.k8s.plan import NODE_RANK, Plan

JOBSETS = "jobsets.jobset.x-k8s.io"
# On the JobSet and all that is made of it, so that one question finds them.
LABEL = "xla-run/job"
CONTAINER = "xla-run"
# How long a JobSet that has ended can be looked at.
KEPT_S = 24 * 3600
_NODE_POOL = "cloud.google.com/gke-nodepool"
# What YAML does not take as it is, beyond what JSON escapes.
_NOT_PRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


def quoted(text: str) -> str:
    """A scalar in YAML that is this text, on one line."""
    plain = json.dumps(text, ensure_ascii=False)
    return _NOT_PRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", plain)


def unexpanded(text: str) -> str:
    """A word or a value that is this text once Kubernetes has replaced what it would."""
    return text.replace("$", "$$")


def job_set(plan: Plan) -> str:
    """The JobSet."""
    return "\n".join([*_head(plan), *_indented(_policies(plan), 2), *_indented(_pods(plan), 2), ""])


def secret(plan: Plan, seal: str, owner_uid: str = "") -> str:
    """The Secret with what the pods are to know and nobody else.

    Args:
        seal: what proves the pods to each other; new for each job.
        owner_uid: of the JobSet, with which the Secret goes then.
    """
    owner = [
        "  ownerReferences:",
        "    - apiVersion: jobset.x-k8s.io/v1alpha2",
        "      kind: JobSet",
        f"      name: {quoted(plan.name)}",
        f"      uid: {quoted(owner_uid)}",
    ]
    return "\n".join(
        [
            "apiVersion: v1",
            "kind: Secret",
            *_metadata(plan, plan.secret_name),
            *(owner if owner_uid else []),
            "stringData:",
            *(
                f"  {name}: {quoted(value)}"
                for name, value in {"XLA_RUN_SECRET": seal, **plan.secrets}.items()
            ),
            "",
        ]
    )


def whole(plan: Plan, seal: str) -> str:
    """Both, for `kubectl create -f`."""
    remark = (
        "# What xla-run --k8s starts. The Secret proves the pods to each other: it is new for\n"
        "# each job, so write it anew instead of keeping it, and delete it with its job:\n"
        f"#   kubectl delete jobset/{plan.name} secret/{plan.secret_name}\n"
    )
    return f"{remark}{secret(plan, seal)}---\n{job_set(plan)}"


def _head(plan: Plan) -> list[str]:
    # A slice is what one node pool holds; pods in two of them would have no links.
    in_one_pool = [
        "  annotations:",
        "    # All pods in one node pool: that is one slice of TPUs.",
        f"    alpha.jobset.sigs.k8s.io/exclusive-topology: {_NODE_POOL}",
    ]
    return [
        "apiVersion: jobset.x-k8s.io/v1alpha2",
        "kind: JobSet",
        *_metadata(plan, plan.name),
        *(in_one_pool if plan.tpu_topology and plan.nodes > 1 else []),
        "spec:",
    ]


def _metadata(plan: Plan, name: str) -> list[str]:
    return [
        "metadata:",
        f"  name: {quoted(name)}",
        *([f"  namespace: {quoted(plan.namespace)}"] if plan.namespace else []),
        *_indented(_labels(plan), 2),
    ]


def _labels(plan: Plan) -> list[str]:
    return ["labels:", f"  {LABEL}: {quoted(plan.name)}"]


def _policies(plan: Plan) -> list[str]:
    return [
        "# Pod I is NAME-workers-0-I.NAME for the others, also before it is ready: pod 0 is where",
        "# they meet.",
        "network:",
        "  enableDNSHostnames: true",
        "  publishNotReadyAddresses: true",
        "# A pod that ends by a code of podFailurePolicy below ends the job; for any other reason",
        "# all pods are started again, so often.",
        "failurePolicy:",
        f"  maxRestarts: {plan.restarts}",
        "  rules:",
        "    - name: finalCode",
        "      action: FailJobSet",
        "      onJobFailureReasons: [PodFailurePolicy]",
        "# It is there for a day after its end, with what its pods have said.",
        f"ttlSecondsAfterFinished: {KEPT_S}",
    ]


def _pods(plan: Plan) -> list[str]:
    return [
        "replicatedJobs:",
        "  - name: workers",
        "    replicas: 1",
        "    template:",
        "      metadata:",
        *_indented(_labels(plan), 8),
        "      spec:",
        "        # One pod on each host, all at once, each with its number.",
        "        completionMode: Indexed",
        f"        parallelism: {plan.nodes}",
        f"        completions: {plan.nodes}",
        "        # One pod cannot be started again alone: the others are in the middle of a step.",
        "        backoffLimit: 0",
        *_indented(_pod_failures(plan), 8),
        "        template:",
        "          metadata:",
        *_indented(_labels(plan), 12),
        "          spec:",
        *_indented(_pod(plan), 12),
    ]


def _pod_failures(plan: Plan) -> list[str]:
    operator, codes = plan.final_codes()
    meaning = (
        ("All codes are final, but for 73 (a host was lost), 75 (preempted) and", "143 (SIGTERM).")
        if operator == "NotIn"
        else ("What another start would only repeat: usage, preflight, rendezvous,", "a hang, ...")
    )
    return [
        "podFailurePolicy:",
        "  rules:",
        "    # Evicted, preempted, or its node is gone: whatever its code, all are started again.",
        "    - action: Count",
        "      onPodConditions:",
        "        - type: DisruptionTarget",
        '          status: "True"',
        *(f"    # {line}" for line in meaning),
        "    - action: FailJob",
        "      onExitCodes:",
        f"        containerName: {CONTAINER}",
        f"        operator: {operator}",
        f"        values: [{', '.join(map(str, sorted(codes)))}]",
    ]


def _pod(plan: Plan) -> list[str]:
    chosen = {
        "cloud.google.com/gke-tpu-accelerator": plan.tpu_accelerator,
        "cloud.google.com/gke-tpu-topology": plan.tpu_topology,
    }
    selector = [f"  {name}: {quoted(value)}" for name, value in chosen.items() if value]
    return [
        "restartPolicy: Never",
        "# Longer than the ranks have after SIGTERM to save what they did.",
        f"terminationGracePeriodSeconds: {plan.grace_s}",
        *(["nodeSelector:", *selector] if selector else []),
        "containers:",
        f"  - name: {CONTAINER}",
        f"    image: {quoted(plan.image)}",
        "    command:",
        *(f"      - {word}" for word in _command(plan)),
        *_indented(_variables(plan), 4),
        *_indented(_resources(plan), 4),
        "    volumeMounts:",
        "      - name: shm",
        "        mountPath: /dev/shm",
        "volumes:",
        "  # Ranks and loaders share memory there; without it a pod has 64 MiB.",
        "  - name: shm",
        "    emptyDir:",
        "      medium: Memory",
        f"      sizeLimit: {quoted(plan.shm_size)}",
    ]


def _command(plan: Plan) -> list[str]:
    """The words of the container; the number of a pod is put in by Kubernetes."""
    number = '"$(JOB_COMPLETION_INDEX)"'
    return [number if word == NODE_RANK else quoted(unexpanded(word)) for word in plan.argv]


def _variables(plan: Plan) -> list[str]:
    device = "TPU" if plan.tpu_topology else "CUDA" if plan.gpus else ""
    env: Mapping[str, str] = {**({"PJRT_DEVICE": device} if device else {}), **plan.env}
    lines = ["envFrom:", "  - secretRef:", f"      name: {quoted(plan.secret_name)}"]
    if env:
        lines.append("env:")
    for name, value in env.items():
        lines += [f"  - name: {quoted(name)}", f"    value: {quoted(unexpanded(value))}"]
    return lines


def _resources(plan: Plan) -> list[str]:
    devices = {"nvidia.com/gpu": plan.gpus, "google.com/tpu": plan.tpu_chips}
    whole_ones = {name: str(number) for name, number in devices.items() if number}
    # More cores than asked for may be used where they are idle; more memory may not.
    asked = {"cpu": plan.cpu, "memory": plan.memory, **whole_ones}
    most = {"memory": plan.memory, **whole_ones}
    lines = []
    for title, values in (("requests", asked), ("limits", most)):
        found = [f"    {name}: {quoted(value)}" for name, value in values.items() if value]
        lines += [f"  {title}:", *found] if found else []
    return ["resources:", *lines] if lines else []


def _indented(lines: list[str], by: int) -> list[str]:
    return [" " * by + line for line in lines]
