"""The way by gcloud: its commands, and its words for what goes wrong.

What it does with agents is in tests/launcher/test_on_tpu_vms.py.
"""

from pathlib import Path
from typing import Any

import pytest
from gcloud_stand_in import V4_16
from gcloud_stand_in import Gcloud as StandIn

from torch_xdist.launcher.backends.gcloud import Gcloud
from torch_xdist.launcher.facts.errors import HostError
from torch_xdist.launcher.facts.host_list import Host

WORKER = Host("pod-w1", "me", slots=4, worker=1)
ENDPOINTS = V4_16["networkEndpoints"]


def way(folder: Path, found: Any = V4_16) -> Gcloud:
    StandIn(folder, {"pod": found})
    return Gcloud([f"{folder}/gcloud", "--zone=z", "--project=p"])


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
