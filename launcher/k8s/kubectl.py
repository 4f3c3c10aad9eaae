"""kubectl: started, bounded, and its refusals told in our words with an exit code of the contract.

No secret stands in its arguments: what is created comes over its stdin. Clusters, users and
contexts are those of its own configuration.
"""

import re
import subprocess
import threading
from collections.abc import Callable, Iterable, Sequence

from torch_xdist.launcher.facts.errors import (
    AuthError,
    DuplicateJobError,
    HostError,
    LauncherError,
    PreflightError,
    UsageError,
)
from torch_xdist.system import process_tree

LIMIT_S = 30.0
_REQUEST_S = 20
_INSTALL = (
    "kubectl apply --server-side -f "
    "https://github.com/kubernetes-sigs/jobset/releases/latest/download/manifests.yaml"
)


class NotThereError(HostError):
    """What was asked for is not in the cluster."""


class Kubectl:
    """kubectl for one context and namespace; "" for those of its own configuration."""

    def __init__(self, context: str = "", namespace: str = "", program: str = "kubectl") -> None:
        self.context, self.namespace, self._program = context, namespace, program

    def words(self, *words: str) -> list[str]:
        """The command line of a call."""
        where = {"--context": self.context, "--namespace": self.namespace}
        given = [f"{option}={value}" for option, value in where.items() if value]
        return [self._program, *words, *given]

    def run(self, *words: str, stdin: str = "", limit_s: float = LIMIT_S) -> str:
        """What it prints.

        Raises:
            LauncherError: it refuses, cannot be started, or does not end in time.
        """
        command = self.words(*words, f"--request-timeout={_REQUEST_S}s")
        try:
            done = subprocess.run(
                command,
                input=stdin.encode(),
                capture_output=True,
                timeout=limit_s,
                check=False,
                # A Ctrl-C on the terminal is for xla-run, which then asks for the job's end.
                start_new_session=True,
            )
        except OSError as error:
            raise _not_started(error) from error
        except subprocess.TimeoutExpired:
            raise HostError(
                f"--k8s: `kubectl {words[0]}` did not answer within {limit_s:g} s; see whether "
                "`kubectl get pods` does"
            ) from None
        if done.returncode != 0:
            raise explained(words, done.returncode, done.stderr.decode(errors="replace"))
        return done.stdout.decode(errors="replace")

    def stream(self, *words: str) -> "Stream":
        """Start one that goes on.

        Raises:
            PreflightError: it cannot be started.
        """
        try:
            return Stream(self.words(*words))
        except OSError as error:
            raise _not_started(error) from error


class Stream:
    """A kubectl whose lines are read while it runs; its last words of stderr are kept."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            # What follows a log of a quiet job would not notice that nobody reads it.
            preexec_fn=process_tree.die_with_parent,
        )
        self._said: list[bytes] = []
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def lines(self, take: Callable[[bytes], None]) -> tuple[int, str]:
        """Hand on every line, to the end of the process: its code, and what it said on stderr."""
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                take(line)
        code = self._process.wait()
        self._listener.join(1.0)
        return code, b"".join(self._said[-20:]).decode(errors="replace").strip()

    def kill(self) -> None:
        self._process.kill()

    def _listen(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for line in lines:
                self._said = [*self._said[-20:], line]


def last_words(said: str) -> str:
    """The line of kubectl's stderr that says what is wrong."""
    # Lines of its own log come before; they say the same at length.
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    own = [line for line in lines if not re.match(r"[EWI]\d{4} |Warning: ", line)]
    return (own or lines or [""])[-1].removeprefix("error: ")


def explained(words: Sequence[str], code: int, said: str) -> LauncherError:
    """The error that a failure of kubectl is. Pure."""
    told = last_words(said)
    for pattern, make in _MEANINGS:
        if re.search(pattern, said, re.IGNORECASE):
            return make(told)
    asked = f"`kubectl {words[0]}`"
    ended = f"{told}; see docs/pods.md" if told else f"it ended with code {code} and no word"
    return PreflightError(f"--k8s: {asked} failed: {ended}")


def _not_started(error: OSError) -> PreflightError:
    return PreflightError(
        f"--k8s: kubectl cannot be started here ({error.strerror}); install it "
        "(https://kubernetes.io/docs/tasks/tools), or write the manifest by --print and apply it "
        "elsewhere"
    )


def _meaning(kind: type[LauncherError], text: str) -> Callable[[str], LauncherError]:
    return lambda told: kind(f"--k8s: {text.format(told=told)}")


# What kubectl says, the first that fits: as version 1.32 and its servers say it.
_MEANINGS: Iterable[tuple[str, Callable[[str], LauncherError]]] = (
    (
        r"no matches for kind \"JobSet\"|doesn't have a resource type \"jobsets|"
        r"could not find the requested resource.*jobset",
        _meaning(
            PreflightError,
            "this cluster has no JobSet, which starts all pods of a job together; have it "
            f"installed, once for the cluster: {_INSTALL}",
        ),
    ),
    (
        r"context was not found|context \"[^\"]*\" does not exist",
        _meaning(UsageError, "{told}; see the contexts there are: kubectl config get-contexts"),
    ),
    (
        r"Unauthorized|must be logged in|getting credentials|executable .* not found",
        _meaning(AuthError, "the cluster does not know you: {told}; log in to it again"),
    ),
    (
        r"\(AlreadyExists\)|already exists",
        _meaning(DuplicateJobError, "{told}"),
    ),
    (
        r"namespaces \"[^\"]*\" not found",
        _meaning(UsageError, "{told}; see those there are: kubectl get namespaces"),
    ),
    (r"\(NotFound\)", _meaning(NotThereError, "{told}")),
    (
        r"exceeded quota",
        _meaning(PreflightError, "the namespace's quota does not allow it: {told}"),
    ),
    (
        r"\(Forbidden\)|forbidden:",
        _meaning(
            PreflightError,
            "your user in the cluster may not do this: {told}; it needs create, get, list and "
            "delete of jobsets, create and update of secrets, get and list of jobs, pods and "
            "pods/log",
        ),
    ),
    (
        r"was refused|unable to connect|connection refused|dial tcp|i/o timeout|timed? ?out|"
        r"no such host|TLS handshake|unexpected EOF|connection reset|server is currently unable|"
        r"ServiceUnavailable|InternalError|TooManyRequests|etcdserver|net/http|x509",
        _meaning(
            HostError,
            "kubectl reaches no cluster: {told}; see `kubectl cluster-info`, and name another "
            "cluster by --context",
        ),
    ),
    (
        r"is invalid|admission webhook|denied the request|strict decoding error|unknown field",
        _meaning(
            PreflightError, "the cluster refuses the job: {told}; look at the manifest by --print"
        ),
    ),
)
