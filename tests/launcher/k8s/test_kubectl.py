"""kubectl as a program: bounded, and what its refusals mean."""

import time
from pathlib import Path

import pytest
from kubectl_stand_in import REFUSED, calls, stand_in

from torch_xdist.launcher.facts.errors import (
    AuthError,
    DuplicateJobError,
    HostError,
    PreflightError,
    UsageError,
)
from torch_xdist.launcher.k8s.kubectl import Kubectl, NotThereError, explained

_MEMCACHE = 'E1124 02:42:10.191919   27971 memcache.go:265] "Unhandled Error" err="dial tcp"\n'


@pytest.mark.parametrize(
    ("said", "kind", "told"),
    [
        (
            _MEMCACHE + REFUSED,
            HostError,
            f"kubectl reaches no cluster: {REFUSED}; see `kubectl clu",
        ),
        (
            'error: error validating "STDIN": failed to download openapi: dial tcp 127.0.0.1:8080',
            HostError,
            'kubectl reaches no cluster: error validating "STDIN": failed to download',
        ),
        (
            "Unable to connect to the server: dial tcp: lookup a on 10.0.0.2:53: no such host",
            HostError,
            "kubectl reaches no cluster: Unable to connect to the server",
        ),
        (
            'error: resource mapping not found for name: "a" namespace: "" from "STDIN": no '
            'matches for kind "JobSet" in version "jobset.x-k8s.io/v1alpha2"\nensure CRDs',
            PreflightError,
            "this cluster has no JobSet, which starts all pods of a job together; have it",
        ),
        (
            'error: the server doesn\'t have a resource type "jobsets"',
            PreflightError,
            "kubectl apply --server-side -f https://github.com/kubernetes-sigs/jobset/releases/",
        ),
        (
            "Error in configuration: context was not found for specified context: nope",
            UsageError,
            "nope; see the contexts there are: kubectl config get-contexts",
        ),
        (
            'error: context "nope" does not exist',
            UsageError,
            'context "nope" does not exist; see the contexts',
        ),
        (
            'Error from server (NotFound): error when creating "STDIN": namespaces "x" not found',
            UsageError,
            'namespaces "x" not found; see those there are: kubectl get namespaces',
        ),
        (
            'Error from server (NotFound): pods "x" not found',
            NotThereError,
            'pods "x" not found',
        ),
        (
            'Error from server (Forbidden): error when creating "STDIN": jobsets.jobset.x-k8s.io '
            'is forbidden: User "eve" cannot create resource "jobsets" in the namespace "ml"',
            PreflightError,
            "your user in the cluster may not do this: Error from server (Forbidden): error ",
        ),
        (
            'Error from server (Forbidden): secrets "a" is forbidden: exceeded quota: q, asked',
            PreflightError,
            "the namespace's quota does not allow it: Error from server (Forbidden)",
        ),
        (
            'Error from server (AlreadyExists): jobsets.jobset.x-k8s.io "a" already exists',
            DuplicateJobError,
            '"a" already exists',
        ),
        (
            "error: You must be logged in to the server (Unauthorized)",
            AuthError,
            "the cluster does not know you: You must be logged in to the server (Unauthorized)",
        ),
        (
            "error: getting credentials: exec: executable gke-gcloud-auth-plugin not found",
            AuthError,
            "the cluster does not know you: getting credentials: exec: executable gke-gcloud",
        ),
        (
            'Error from server (Invalid): error when creating "STDIN": JobSet "a" is invalid: spec',
            PreflightError,
            "the cluster refuses the job: Error from server (Invalid)",
        ),
        (
            'Error from server (BadRequest): strict decoding error: unknown field "spec.x"',
            PreflightError,
            "look at the manifest by --print",
        ),
        ("what is this\n", PreflightError, "`kubectl get` failed: what is this; see docs/pods.md"),
        ("", PreflightError, "`kubectl get` failed: it ended with code 1 and no word"),
    ],
)
def test_a_refusal_is_told_with_what_to_do(said: str, kind: type, told: str) -> None:
    error = explained(["get"], 1, said)
    assert type(error) is kind and told in str(error) and str(error).startswith("--k8s: ")


def test_context_and_namespace_are_named_and_requests_are_bounded(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setenv("PATH", stand_in(tmp_path, sights=[[]]))
    assert Kubectl("here", "ml").run("get", "pods") == '{"kind": "List", "items": []}\n'
    words = ["get", "pods", "--request-timeout=20s", "--context=here", "--namespace=ml"]
    assert calls(tmp_path) == [(words, "")]


def test_a_kubectl_that_hangs_is_ended(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", stand_in(tmp_path, {"get": ["hang"]}))
    started_s = time.monotonic()
    with pytest.raises(HostError, match="`kubectl get` did not answer within 1 s; see whether `ku"):
        Kubectl().run("get", "pods", limit_s=1.0)
    assert time.monotonic() - started_s < 30


def test_a_machine_without_kubectl_is_told(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for call in (Kubectl().run, Kubectl().stream):
        with pytest.raises(PreflightError) as refused:
            call("get")
        told = "kubectl cannot be started here (No such file or directory); install it (https://"
        assert told in str(refused.value) and refused.value.exit_code == 71
