"""`xla-run --k8s` itself: print a job, or start it, or follow one that is there; its exit code."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import click

from torch_xdist.launcher.facts.errors import LauncherError, UsageError
from torch_xdist.launcher.k8s import manifest, start
from torch_xdist.launcher.k8s import plan as plans
from torch_xdist.launcher.k8s.follow import Follow, Limits, Stops
from torch_xdist.launcher.k8s.kubectl import Kubectl
from torch_xdist.launcher.k8s.options import Asked, Beside, plan
from torch_xdist.launcher.k8s.plan import Plan


def run(
    asked: Asked,
    beside: Beside,
    line: Sequence[str],
    words: Sequence[str],
    show: Callable[[bytes], None],
    hear: Callable[[Callable[[int], None]], None],
    *,
    dry_run: bool,
) -> int:
    """Do what the options say; the exit code.

    Args:
        line: the words after `xla-run`; those at its end are the command, `words`.
        show: gets every line of pod 0.
        hear: lets the signals to this process come to a function, from then on.

    Raises:
        LauncherError: they cannot be right, or the cluster refuses.
    """
    kubectl, stops = Kubectl(asked.context, asked.namespace), Stops()
    limits = Limits(notice_s=beside.timeouts.notice_s, wait_s=beside.wait_s)
    if not words and not asked.image:
        if asked.prints or dry_run:
            raise UsageError("--print: the command and --image are needed, to print a job")
        name = plans.check_name(asked.k8s)
        # SimpleQueue.put is safe in a signal handler, whatever it interrupts.
        hear(stops.put)
        return _followed(kubectl, name, limits, show, stops, is_ours=False)
    described = plan(asked, beside, line, words)
    if asked.prints or dry_run:
        shown, seal = (_masked(described), "***") if dry_run else (described, start.seal())
        click.echo(manifest.whole(shown, seal), nl=False)
        return 0
    hear(stops.put)
    start.create(kubectl, described)
    where = "" if described.nodes == 1 else "s"
    _say(f"job {described.name} on Kubernetes: {described.nodes} pod{where} of {described.image}")
    if asked.detach:
        _say(f"follow it: xla-run --k8s {described.name}")
        return 0
    limits = replace(limits, grace_s=float(described.grace_s))
    return _followed(kubectl, described.name, limits, show, stops, is_ours=True)


def _masked(described: Plan) -> Plan:
    return replace(described, secrets=dict.fromkeys(described.secrets, "***"))


def _followed(
    kubectl: Kubectl,
    name: str,
    limits: Limits,
    show: Callable[[bytes], None],
    stops: Stops,
    *,
    is_ours: bool,
) -> int:
    """Follow a job to its end; `is_ours`: whether we have started it."""
    try:
        ended = Follow(kubectl, name, limits, show, _say, stops, is_ours=is_ours).run()
    except LauncherError:
        if is_ours:
            way = f"follow it: xla-run --k8s {name}; end it: kubectl delete jobset/{name}"
            _say(f"job {name} goes on without us; {way}")
        raise
    if ended.text:
        _say(ended.text)
    return ended.exit_code


def _say(text: str) -> None:
    click.echo(f"xla-run: {text}", err=True)
