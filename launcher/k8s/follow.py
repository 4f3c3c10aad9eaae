"""A job on Kubernetes from its first pod to its exit code: the lines of pod 0, and what to know.

The cluster is asked at intervals, because a watch that breaks off tells nobody. An answer that does
not come ends nothing: the job goes on without us.
"""

import json
import queue
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from torch_xdist.launcher.facts.errors import AuthError, ExitCode, HostError, LauncherError
from torch_xdist.launcher.facts.settings import show_seconds
from torch_xdist.launcher.head.ending import Ending
from torch_xdist.launcher.k8s import sight as sights
from torch_xdist.launcher.k8s import start
from torch_xdist.launcher.k8s.ending import SIGTERM, cause, ending
from torch_xdist.launcher.k8s.kubectl import Kubectl, NotThereError
from torch_xdist.launcher.k8s.manifest import JOBSETS, LABEL
from torch_xdist.launcher.k8s.pod_log import PodLog
from torch_xdist.launcher.k8s.sight import Pod, Sight

_SIGHUP = 1
# Beyond the grace of a pod: the kubelet takes its time to say that it has ended.
_END_MORE_S = 30.0
_OLD_LOG_S = 5.0


@dataclass(frozen=True)
class Limits:
    """How long what may take, in seconds.

    `notice_s`: until what is waited for is told, `wait_s`: until all pods must have started,
    `grace_s`: of a pod between SIGTERM and SIGKILL, `silent_s`: without an answer of the cluster.
    """

    notice_s: float = 10.0
    wait_s: float = 1800.0
    grace_s: float = 60.0
    silent_s: float = 300.0
    poll_s: float = 1.0
    drain_s: float = 15.0


Stops = queue.SimpleQueue[int]
"""Signals to this process, put in by their handlers."""


class Follow:
    """One job, followed to its end.

    Args:
        show: gets every line of pod 0; say: gets what Kubernetes does with the job.
        is_ours: whether we have started it, and so end it when we are stopped or it cannot begin.
    """

    def __init__(
        self,
        kubectl: Kubectl,
        name: str,
        limits: Limits,
        show: Callable[[bytes], None],
        say: Callable[[str], None],
        stops: Stops,
        *,
        is_ours: bool,
    ) -> None:
        self._is_ours = is_ours
        self._kubectl, self._name, self._limits = kubectl, name, limits
        self._show, self._say, self._stops = show, say, stops
        self._seen: dict[str, Pod] = {}
        self._uid, self._restarts = "", 0
        self._followed: set[str] = set()
        self._log: PodLog | None = None
        self._waiting_since_s = time.monotonic()
        self._stuck_since_s: dict[str, float] = {}
        self._silent_since_s: float | None = None
        self._told = ""
        self._leaving: Ending | None = None
        self._leave_at_s = 0.0

    def run(self) -> Ending:
        """The end of the job.

        Raises:
            LauncherError: there is no such job, or nothing can be learned of it any more.
        """
        try:
            while True:
                if (sight := self._look()) is not None and (over := self._step(sight)) is not None:
                    return over
                if (over := self._heard()) is not None:
                    return over
        finally:
            if self._log is not None:
                self._log.drop()

    def _step(self, sight: Sight) -> Ending | None:
        """What follows from one look; the ending where the job is over."""
        for pod in sight.pods:
            self._seen[pod.uid] = pod
        self._tell_restart(sight)
        self._follow_head(sight)
        if self._leaving is not None:
            gone = not sight.uid and not sight.pods
            return self._finished(self._leaving, sight) if gone or self._too_late() else None
        if sight.state:
            return self._finished(ending(self._name, sight, self._seen.values()), sight)
        if not sight.uid or (self._uid and sight.uid != self._uid):
            return self._deleted(sight)
        self._uid = sight.uid
        return self._waited_for(sight)

    def _look(self) -> Sight | None:
        """The job as it is; None where the cluster does not answer."""
        kinds, label = f"{JOBSETS},jobs.batch,pods", f"--selector={LABEL}={self._name}"
        now_s = time.monotonic()
        try:
            text = self._kubectl.run("get", kinds, label, "--output=json")
            found = sights.read(json.loads(text)["items"])
        except LauncherError as error:
            # What was there a moment ago will be again; but whether it ever was must be known.
            passes = isinstance(error, HostError | AuthError) and self._is_ours
            if not self._uid and not passes:
                raise
            why = error
        except (ValueError, KeyError, TypeError) as error:
            why = HostError(f"--k8s: what `kubectl get` prints cannot be read ({error!r})")
        else:
            self._silent_since_s = None
            return found
        if self._silent_since_s is None:
            self._silent_since_s = now_s
        if now_s - self._silent_since_s >= self._limits.silent_s:
            raise why
        if now_s - self._silent_since_s >= self._limits.notice_s:
            self._tell(f"{str(why).removeprefix('--k8s: ')}; asking on, the job does not need us")
        return None

    def _heard(self) -> Ending | None:
        """Wait for the next look or a signal; the ending where we are to go at once."""
        try:
            number = self._stops.get(timeout=self._limits.poll_s)
        except queue.Empty:
            return self._leaving if self._leaving is not None and self._too_late() else None
        left = Ending(128 + number, text=f"left job {self._name}, whose end may take a while")
        if number == _SIGHUP or not self._is_ours:
            way = f"end it: kubectl delete jobset/{self._name}"
            return replace(left, text=f"left job {self._name}, which goes on; {way}")
        if self._leaving is not None:
            return left
        ended = Ending(128 + number, text=f"job {self._name} was stopped")
        try:
            start.delete(self._kubectl, self._name)
        except LauncherError as error:
            told = f"{error}; end the job yourself: kubectl delete jobset/{self._name}"
            return replace(ended, text=told.removeprefix("--k8s: "))
        self._say(
            f"asked Kubernetes to end job {self._name}: its pods have "
            f"{show_seconds(self._limits.grace_s)} to save what they did (again: leave now)"
        )
        self._leave(ended)
        return None

    def _leave(self, ended: Ending) -> None:
        self._leaving = ended
        self._leave_at_s = time.monotonic() + self._limits.grace_s + _END_MORE_S

    def _too_late(self) -> bool:
        return time.monotonic() >= self._leave_at_s

    def _deleted(self, sight: Sight) -> Ending | None:
        """Somebody else has deleted the job: its pods may still have something to say."""
        if not self._uid and not self._is_ours:
            raise NotThereError(
                f"--k8s: there is no job {self._name} to follow; see those there are: "
                f"kubectl get {JOBSETS}"
            )
        text = f"job {self._name} was deleted by somebody else (its JobSet is not there any more)"
        self._leave(Ending(SIGTERM, text=text))
        return None if sight.pods and not sight.uid else self._finished(self._leaving, sight)

    def _finished(self, ended: Ending | None, sight: Sight) -> Ending:
        assert ended is not None
        if self._log is not None:
            self._log.finish(self._limits.drain_s)
        return ended

    def _tell_restart(self, sight: Sight) -> None:
        if not self._uid and not self._is_ours:
            self._restarts = sight.restarts  # before our time
        elif sight.restarts > self._restarts:
            _, why = cause(self._seen.values(), self._restarts, sight)
            self._say(f"job {self._name} is started again (restart {sight.restarts}): {why}")
            self._restarts = sight.restarts
            self._waiting_since_s = time.monotonic()
            self._told = ""

    def _follow_head(self, sight: Sight) -> None:
        """Show the lines of each pod 0 that has started, one after the other."""
        for head in sight.heads():
            if head.has_started and head.uid not in self._followed:
                if self._log is not None:
                    self._log.finish(_OLD_LOG_S)
                self._followed.add(head.uid)
                self._log = PodLog(self._kubectl, head.name, self._show, self._say)

    def _waited_for(self, sight: Sight) -> Ending | None:
        """Tell what pods wait for; the ending where it is for nothing."""
        now_s, limits = time.monotonic(), self._limits
        if sight.suspended:
            self._waiting_since_s = now_s
            self._tell(f"job {self._name} is suspended: a queue such as Kueue holds it back")
        if sight.suspended or sight.all_started():
            return None
        waited_s = now_s - self._waiting_since_s
        stuck = self._stuck(sight, now_s)
        if stuck is not None:
            advice = "; see whether the image has this name, and the cluster may pull it"
            why = self._why_waits(stuck) + (advice if stuck.image_fails else "")
            return self._given_up(int(ExitCode.PREFLIGHT), why)
        if waited_s >= limits.wait_s:
            told = f"not all pods started within {show_seconds(limits.wait_s)}: "
            return self._given_up(int(ExitCode.RENDEZVOUS), told + self._why_all_wait(sight))
        if waited_s >= limits.notice_s:
            self._tell(self._why_all_wait(sight))
        return None

    def _stuck(self, sight: Sight, now_s: float) -> Pod | None:
        """A pod whose image, or what it is made of, has been wrong for a while."""
        wrong = {pod.uid: pod for pod in sight.newest() if pod.cannot_start}
        self._stuck_since_s = {uid: self._stuck_since_s.get(uid, now_s) for uid in wrong}
        for uid, since_s in self._stuck_since_s.items():
            # The kubelet tries twice within this time.
            if now_s - since_s >= 2 * self._limits.notice_s:
                return wrong[uid]
        return None

    def _given_up(self, code: int, why: str) -> Ending:
        if not self._is_ours:
            return Ending(code, text=f"{why}; the job is left as it is")
        try:
            start.delete(self._kubectl, self._name)
            done = "the job was deleted"
        except LauncherError as error:
            done = f"{error}; end it yourself: kubectl delete jobset/{self._name}"
        return Ending(code, text=f"{why}; {done}")

    def _why_all_wait(self, sight: Sight) -> str:
        pods = [pod for pod in sight.newest() if not pod.has_started]
        if not pods:
            return f"no pods have been made yet{self._events()}"
        more = f" (and {len(pods) - 1} more)" if len(pods) > 1 else ""
        return self._why_waits(pods[0]) + more

    def _why_waits(self, pod: Pod) -> str:
        if pod.unplaced:
            return f"pod {pod.name} waits for a node: {pod.unplaced.rstrip('.')}"
        told = f": {pod.why}" if pod.why else ""
        return f"pod {pod.name} waits: {pod.waits or 'not started yet'}{told}"

    def _events(self) -> str:
        """Why the Job makes no pods, such as a quota; "" where that cannot be learned."""
        where = f"--field-selector=involvedObject.name={self._name}-workers-0,type=Warning"
        try:
            text = self._kubectl.run("get", "events", where, "--output=json")
            items = json.loads(text)["items"]
            return f": {items[-1]['message']}" if items else ""
        except (LauncherError, ValueError, KeyError, TypeError):
            return ""

    def _tell(self, text: str) -> None:
        if text != self._told:
            self._told = text
            self._say(text)
