"""The way by gcloud: which workers a TPU has, its commands, and its words for what goes wrong.

What it does with agents is in tests/launcher/test_on_tpu_vms.py.
"""

from pathlib import Path
from typing import Any

import pytest
from gcloud_stand_in import V4_16
from gcloud_stand_in import Gcloud as StandIn

from torch_xdist.launcher.backends import gcloud
from torch_xdist.launcher.backends.gcloud import Gcloud
from torch_xdist.launcher.facts.errors import HostError, UsageError
from torch_xdist.launcher.facts.host_list import Host

WORKER = Host("pod-w1", "me", slots=4, worker=1)
ENDPOINTS = V4_16["networkEndpoints"]


def way(folder: Path, found: Any = V4_16) -> Gcloud:
    StandIn(folder, {"pod": found})
    return Gcloud([f"{folder}/gcloud", "--zone=z", "--project=p"])


def test_the_workers_are_the_endpoints_in_their_order_with_a_rank_per_chip(tmp_path: Path) -> None:
    assert way(tmp_path).workers("pod", "me") == [
        Host("pod-w0", "me", slots=4, worker=0),
        WORKER,
    ]


def test_without_a_topology_the_name_of_the_type_tells_the_chips(tmp_path: Path) -> None:
    found = {"state": "READY", "acceleratorType": "v5litepod-8", "networkEndpoints": ENDPOINTS[:1]}
    assert [host.slots for host in way(tmp_path, found).workers("pod")] == [8]


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ("CREATING", "TPU pod is CREATING, and READY is needed; wait until it is"),
        ("STOPPED", "gcloud compute tpus tpu-vm start pod"),
        ("PREEMPTED", "TPU pod is PREEMPTED, and READY is needed; delete it and create it again"),
        ("HIDDEN", "gcloud compute tpus tpu-vm describe pod"),
    ],
)
def test_a_tpu_that_is_not_ready_is_told_with_what_to_do(
    tmp_path: Path, state: str, told: str
) -> None:
    with pytest.raises(HostError, match="TPU pod is") as error:
        way(tmp_path, {**V4_16, "state": state}).workers("pod")
    assert told in str(error.value)


@pytest.mark.parametrize(
    ("found", "kind", "told"),
    [
        ("{", HostError, r"TPU pod: the answer of `gcloud ... describe` cannot be read \(Expect"),
        ("null", HostError, r"TPU pod: the answer of `gcloud ... describe` cannot be read"),
        ({**V4_16, "networkEndpoints": []}, HostError, "pod is READY without networkEndpoints"),
        (
            {"state": "READY", "acceleratorType": "v9-8", "networkEndpoints": ENDPOINTS},
            UsageError,
            "TPU pod: TPU type 'v9-8' is unknown",
        ),
    ],
)
def test_an_answer_that_is_none_is_told(
    tmp_path: Path, found: Any, kind: type[Exception], told: str
) -> None:
    with pytest.raises(kind, match=told):
        way(tmp_path, found).workers("pod")


def test_a_tpu_that_gcloud_does_not_know_is_told_in_its_words(tmp_path: Path) -> None:
    told = r"TPU no: gcloud cannot describe it: ERROR: \(gcloud.*NOT_FOUND.*; --zone and --project"
    with pytest.raises(HostError, match=told):
        way(tmp_path).workers("no")


def test_a_machine_without_gcloud_is_told() -> None:
    with pytest.raises(HostError, match=r"TPU pod: /no/gcloud cannot be started here \(No such"):
        Gcloud(["/no/gcloud"]).workers("pod")


def test_a_gcloud_that_does_not_answer_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gcloud, "_ANSWER_S", 0.2)
    (tmp_path / "gcloud").write_text("#!/bin/sh\nexec sleep 100\n")
    (tmp_path / "gcloud").chmod(0o755)
    with pytest.raises(HostError, match=r"TPU pod: gcloud has not answered in 0.2 s; try by hand"):
        Gcloud([f"{tmp_path}/gcloud"]).workers("pod")


def test_the_command_is_one_word_for_the_shell_of_one_worker() -> None:
    words = Gcloud(["gcloud", "--zone=z"]).command(WORKER, ["/my python", "-c", 'a("b")'])
    assert words == [
        *("gcloud", "compute", "tpus", "tpu-vm", "ssh", "me@pod", "--worker=1", "--zone=z"),
        *("--quiet", "--command=exec '/my python' -c 'a(\"b\")'"),
    ]


def test_the_first_worker_of_each_tpu_is_logged_in_to_once(tmp_path: Path) -> None:
    used = way(tmp_path)
    hosts = [Host(f"{name}-w{index}", worker=index) for name in "ab" for index in (0, 1)]
    used.prepare(hosts)
    used.prepare(hosts)
    calls = StandIn.calls(StandIn(tmp_path, {}))
    assert [(words[4], words[5], words[-1]) for words in calls] == [
        *(("a", "--worker=0", "--command=exec true"), ("b", "--worker=0", "--command=exec true")),
    ]


def test_a_first_login_that_fails_is_told(tmp_path: Path) -> None:
    used = way(tmp_path)
    StandIn(tmp_path, {}, {"pod-w0": "refuses"})
    told = r"host pod-w0: gcloud cannot reach it: ssh: connect to host .* refused; try `/.*gcloud c"
    with pytest.raises(HostError, match=told):
        used.prepare([Host("pod-w0", worker=0), WORKER])


@pytest.mark.parametrize(
    ("code", "said", "told"),
    [
        (1, ["ERROR: (gcloud.x) no key", "more"], "gcloud cannot reach it: ERROR: (gcloud.x) no "),
        (255, ["ssh: refused", "Retrying: SSH command error"], "gcloud cannot reach it: ssh: ref"),
        (1, ["ImportError: x"], ""),
    ],
)
def test_a_login_that_fails_is_told_from_an_agent_that_does(
    code: int, said: list[str], told: str
) -> None:
    text = Gcloud(["gcloud"]).why_unreached(WORKER, code, said)
    assert text.startswith(told) and bool(text) == bool(told)
    by_hand = "try `gcloud compute tpus tpu-vm ssh me@pod --worker=1` by hand"
    assert not told or text.endswith(by_hand)


def test_what_gcloud_says_of_itself_is_no_line_of_a_host() -> None:
    used = Gcloud(["gcloud"])
    assert used.is_own("WARNING: x") and not used.is_news("WARNING: x")
    assert not used.is_own("a line") and used.environ() is None


def test_a_connection_that_broke_says_why_and_an_agent_that_ended_does_not() -> None:
    used = Gcloud(["gcloud"])
    assert used.why_lost(255, ["client_loop: broken"]) == "client_loop: broken"
    assert used.why_lost(0, ["a line"]) == ""
    assert used.why_no_python(127, ["sh: no python"]) == "sh: no python"
