"""Make a job in the cluster, its JobSet and the Secret that goes with it, and delete it."""

import json
import secrets

from torch_xdist.launcher.facts.errors import DuplicateJobError, LauncherError
from torch_xdist.launcher.k8s import manifest
from torch_xdist.launcher.k8s.kubectl import Kubectl
from torch_xdist.launcher.k8s.plan import Plan


def seal() -> str:
    """What proves the pods of one job to each other."""
    return secrets.token_hex(32)


def create(kubectl: Kubectl, plan: Plan) -> None:
    """Create both. The Secret belongs to the JobSet, and is removed with it.

    Pods that come first wait for their Secret. Where it cannot be made the JobSet is deleted.

    Raises:
        DuplicateJobError: there is a job of this name.
        LauncherError: the cluster does not take it, or there is none.
    """
    make = ("create", "--filename=-", "--output=json")
    try:
        made = kubectl.run(*make, stdin=manifest.job_set(plan))
    except DuplicateJobError as error:
        raise DuplicateJobError(
            f"--k8s {plan.name}: there is a job of this name, which runs or has ended in the last "
            f"day; follow it: xla-run --k8s {plan.name}; or delete it: "
            f"kubectl delete jobset/{plan.name}"
        ) from error
    try:
        text = manifest.secret(plan, seal(), _uid(made))
        try:
            kubectl.run(*make, stdin=text)
        except DuplicateJobError:
            # Left over from a manifest that was printed: its job is gone.
            kubectl.run("replace", *make[1:], stdin=text)
    except LauncherError as error:
        raise _undone(kubectl, plan, error) from error


def delete(kubectl: Kubectl, name: str) -> None:
    """Ask for the end of a job, and of all that is made of it.

    Raises:
        LauncherError: the cluster does not take it, or there is none.
    """
    kubectl.run("delete", f"{manifest.JOBSETS}/{name}", "--wait=false", "--ignore-not-found")


def _uid(made: str) -> str:
    try:
        return str(json.loads(made)["metadata"]["uid"])
    except (ValueError, KeyError, TypeError):
        return ""  # then the Secret stays when the JobSet goes


def _undone(kubectl: Kubectl, plan: Plan, error: LauncherError) -> LauncherError:
    """Delete the JobSet again; the error that is to be told."""
    try:
        delete(kubectl, plan.name)
    except LauncherError:
        return type(error)(f"{error}; its JobSet is left: kubectl delete jobset/{plan.name}")
    return error
