"""A kubectl for tests, with a cluster of its own: pods of a JobSet are processes of this machine.

What it was called with is kept. It misbehaves as it is told, call by call: `hang`, `slow`,
`partial`, or a line on stderr and a code. With `sights` it answers `get` by those instead.
"""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

_KEPT = (
    *("PATH", "HOME", "TMPDIR", "PYTHONPATH", "XLA_RUN_TEST", "XLA_RUN_PREIMPORT"),
    "XLA_PERSISTENT_CACHE_PATH",
)
REFUSED = "The connection to the server 10.0.0.1:6443 was refused - did you specify the right host?"


def stand_in(
    folder: Path,
    faults: Mapping[str, Sequence[str]] | None = None,
    sights: Sequence[Sequence[Mapping[str, Any]]] = (),
    logs: Mapping[str, Sequence[str]] | None = None,
) -> str:
    """Make one in a folder; a PATH with it in front.

    Args:
        faults: by verb, one for each call, "" for none; after the last one there are none.
        sights: the items of each answer to `get`, the last of them for good.
        logs: by pod, what each connection says, the last of them for good.
    """
    told = {"faults": faults or {}, "sights": sights, "logs": logs or {}}
    (folder / "told").write_text(json.dumps(told))
    script = folder / "kubectl"
    here = str(Path(__file__).parent)
    script.write_text(
        f"#!{sys.executable} -P\nimport sys\nsys.path.insert(0, {here!r})\n"
        f"import kubectl_stand_in\nkubectl_stand_in.main({str(folder)!r}, sys.argv[1:])\n"
    )
    script.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def calls(folder: Path) -> list[tuple[list[str], str]]:
    """The words and the stdin of every call, in order."""
    lines = (folder / "calls").read_text().splitlines() if (folder / "calls").exists() else []
    return [(words, given) for words, given in map(json.loads, lines)]


def main(folder: str, words: list[str]) -> None:
    """Be kubectl."""
    home = Path(folder)
    if words[0] == "a pod":
        return _be_a_pod(home / "pods" / words[1])
    given = sys.stdin.read() if "--filename=-" in words else ""
    with open(home / "calls", "a") as kept:
        kept.write(json.dumps([words, given]) + "\n")
    told = json.loads((home / "told").read_text())
    _misbehave(home, words[0], told["faults"].get(words[0], []))
    cluster = _Cluster(home)
    if words[0] in ("create", "replace"):
        print(json.dumps(cluster.create(yaml.safe_load(given))))
    elif words[0] == "delete":
        cluster.delete()
    elif words[0] == "logs":
        _log(home, words, told["logs"])
    elif words[0] == "get":
        items = _next(home, "get", told["sights"]) if told["sights"] else cluster.items()
        text = json.dumps({"kind": "List", "items": items})
        print(text[: len(text) // 2] if (home / "partial").exists() else text)
    return None


def _next(home: Path, name: str, answers: Sequence[Any]) -> Any:
    """The answer of this call, counted from the first one of its name."""
    counter = home / f"count-{name}"
    number = int(counter.read_text()) if counter.exists() else 0
    counter.write_text(str(number + 1))
    return answers[min(number, len(answers) - 1)]


def _misbehave(home: Path, verb: str, faults: Sequence[str]) -> None:
    fault = _next(home, f"fault-{verb}", [*faults, ""]) if faults else ""
    with contextlib.suppress(FileNotFoundError):
        (home / "partial").unlink()
    if fault == "hang":
        time.sleep(300)
    elif fault == "slow":
        time.sleep(1.0)
    elif fault == "partial":
        (home / "partial").touch()
    elif fault:
        print(fault, file=sys.stderr)
        sys.exit(1)


def _log(home: Path, words: list[str], logs: Mapping[str, Sequence[str]]) -> None:
    name = words[1]
    since = [word.partition("=")[2] for word in words if word.startswith("--since-time=")]
    if name in logs:
        text = _next(home, f"log-{name}", logs[name])
        kept = [line for line in text.splitlines(keepends=True) if not since or _at(line) >= since]
        sys.stdout.write("".join(kept))
        return
    pod, shown = home / "pods" / name, 0
    if not pod.exists():
        print(f'Error from server (NotFound): pods "{name}" not found', file=sys.stderr)
        sys.exit(1)
    while True:
        is_over = (pod / "code").exists() or "--follow" not in words
        lines = (pod / "log").read_text().splitlines(keepends=True)
        for line in lines[shown:]:
            if line.endswith("\n") or is_over:
                shown += 1
                if not since or _at(line) >= since:
                    sys.stdout.write(line)
        sys.stdout.flush()
        if is_over:
            return
        time.sleep(0.05)


def _at(line: str) -> list[str]:
    return [line[:19] + "Z"]


class _Cluster:
    """Its state is files, so that every call finds it."""

    def __init__(self, home: Path) -> None:
        self._home, self._file, self._pods = home, home / "jobset", home / "pods"
        self._pods.mkdir(exist_ok=True)

    def create(self, item: dict[str, Any]) -> dict[str, Any]:
        name, kind = item["metadata"]["name"], item["kind"]
        item["metadata"]["uid"] = f"uid-of-{name}"
        file = self._home / kind.lower()
        if file.exists() and sys.argv[1] == "create":
            where = f'{kind.lower()}s "{name}" already exists'
            print(f"Error from server (AlreadyExists): {where}", file=sys.stderr)
            sys.exit(1)
        _write(file, json.dumps(item))
        if kind == "Secret":  # pods wait for it
            self._start(0)
        return item

    def delete(self) -> None:
        """The JobSet is gone at once; its pods end, and are gone then."""
        self._file.unlink(missing_ok=True)
        for pod in self._pods.iterdir():
            (pod / "deleted").touch()
            _signal(pod)

    def items(self) -> list[dict[str, Any]]:
        """The JobSet, its Job and the pods, after what follows from how the pods have ended."""
        if not self._file.exists():
            return [_item(pod) for pod in self._all() if not (pod / "code").exists()]
        job_set = json.loads(self._file.read_text())
        if not job_set.get("status", {}).get("conditions"):
            self._judge(job_set)
            _write(self._file, json.dumps(job_set))
        return [job_set, self._job(job_set), *map(_item, self._all())]

    def _all(self) -> list[Path]:
        return sorted(self._pods.iterdir())

    def _judge(self, job_set: dict[str, Any]) -> None:
        status = job_set.setdefault("status", {})
        attempt = status.get("restarts", 0)
        pods = [pod for pod in self._all() if json.loads((pod / "pod").read_text())[1] == attempt]
        codes = [int((pod / "code").read_text()) for pod in pods if (pod / "code").exists()]
        if pods and codes == [0] * len(pods):
            status["conditions"] = [_is("Completed", "AllJobsCompleted", "jobset completed")]
        if not any(codes):
            return
        for pod in pods:
            _signal(pod)
        if len(codes) < len(pods):
            return
        limit = job_set["spec"]["failurePolicy"]["maxRestarts"]
        if self._is_final(job_set, codes):
            reason = "FailJobSetFailurePolicyAction"
            status["conditions"] = [_is("Failed", reason, "applying FailJobSet failure policy")]
        elif attempt >= limit:
            status["conditions"] = [_is("Failed", "ReachedMaxRestarts", "jobset failed due to")]
        else:
            status["restarts"] = attempt + 1
            self._start(attempt + 1)

    def _is_final(self, job_set: dict[str, Any], codes: Sequence[int]) -> bool:
        job = job_set["spec"]["replicatedJobs"][0]["template"]["spec"]
        rule = job["podFailurePolicy"]["rules"][1]["onExitCodes"]
        failed = {code for code in codes if code}
        if rule["operator"] == "In":
            return bool(failed & set(rule["values"]))
        return bool(failed - set(rule["values"]))

    def _job(self, job_set: dict[str, Any]) -> dict[str, Any]:
        about = {"name": job_set["metadata"]["name"] + "-workers-0", "uid": "uid-of-job"}
        return {"kind": "Job", "metadata": about, "status": {}}

    def _start(self, attempt: int) -> None:
        job_set = json.loads(self._file.read_text())
        job = job_set["spec"]["replicatedJobs"][0]["template"]["spec"]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        for index in range(job["parallelism"]):
            name = f"{job_set['metadata']['name']}-workers-0-{index}-{attempt:05d}"
            pod = self._pods / name
            pod.mkdir()
            (pod / "log").touch()
            (pod / "pod").write_text(json.dumps([index, attempt, port]))
            words = [sys.argv[0], "a pod", name]
            nothing = subprocess.DEVNULL
            process = subprocess.Popen(
                words, stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True
            )
            (pod / "pid").write_text(str(process.pid))


def _item(pod: Path) -> dict[str, Any]:
    index, attempt, _ = json.loads((pod / "pod").read_text())
    state: dict[str, Any] = {"running": {}}
    if (pod / "code").exists():
        code = int((pod / "code").read_text())
        state = {"terminated": {"exitCode": code, "reason": "Error" if code else "Completed"}}
    labels = {
        "batch.kubernetes.io/job-completion-index": str(index),
        "jobset.sigs.k8s.io/restart-attempt": str(attempt),
    }
    about = {"name": pod.name, "uid": f"uid-of-{pod.name}", "labels": labels}
    status = {"phase": "Running", "containerStatuses": [{"state": state}]}
    return {"kind": "Pod", "metadata": about, "spec": {"nodeName": "here"}, "status": status}


def _write(file: Path, text: str) -> None:
    """Whole at once: pods read while calls write."""
    new = file.with_suffix(".new")
    new.write_text(text)
    os.replace(new, file)


def _is(kind: str, reason: str, message: str) -> dict[str, str]:
    return {"type": kind, "status": "True", "reason": reason, "message": message}


def _signal(pod: Path) -> None:
    if not (pod / "code").exists():
        with contextlib.suppress(ProcessLookupError, FileNotFoundError, ValueError):
            os.kill(int((pod / "pid").read_text()), signal.SIGTERM)


def _be_a_pod(pod: Path) -> None:
    """Run the container, write each of its lines with the time, and then its code."""
    home = pod.parent.parent
    container = json.loads((home / "jobset").read_text())["spec"]["replicatedJobs"][0]["template"][
        "spec"
    ]["template"]["spec"]["containers"][0]
    index, _, port = json.loads((pod / "pod").read_text())
    secret = json.loads((home / "secret").read_text())["stringData"]
    env = {name: os.environ[name] for name in _KEPT if name in os.environ}
    env |= {**secret, "JOB_COMPLETION_INDEX": str(index), "XLA_RUN_STATE_DIR": str(pod / "state")}
    for one in container.get("env", []):
        env[one["name"]] = expanded(one["value"], env)
    # The only name of a pod that its command asks for, and this machine has one for all pods.
    words = [expanded(word, env) for word in container["command"]]
    words = ["127.0.0.1" if "-workers-0-0." in word else word for word in words]
    words = [str(port) if word == "29500" else word for word in words]
    (pod / "state").mkdir(mode=0o700)
    process = subprocess.Popen(
        words, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    signal.signal(signal.SIGTERM, lambda number, _: process.send_signal(number))
    assert process.stdout is not None
    with open(pod / "log", "ab", buffering=0) as log:
        for line in process.stdout:
            stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z ")
            log.write(stamp.encode() + line)
    code = process.wait()
    _write(pod / "code", str(code if code >= 0 else 128 - code))


def expanded(text: str, env: Mapping[str, str]) -> str:
    """What Kubernetes makes of a word or a value: $(NAME) is replaced, $$ is one $."""

    def one(found: re.Match[str]) -> str:
        if found[0] == "$$":
            return "$"
        return env.get(found[1], found[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", one, text)
