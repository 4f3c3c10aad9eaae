"""What a host says of itself, on its way to the head."""

import json

import pytest

from torch_xdist.launcher.facts import host
from torch_xdist.launcher.facts.devices import Found
from torch_xdist.launcher.facts.errors import ProtocolError
from torch_xdist.launcher.facts.host import HostFacts
from torch_xdist.launcher.facts.tpu import slice_of

WHOLE = slice_of("v4-16", 1, ["t0", "t1"])
FACTS = HostFacts("a", "10.0.0.1", 7, (0, 2), 1 << 30, Found({"TPU": 4}, {"TPU": True}), {}, WHOLE)


def test_facts_arrive_as_they_were_sent() -> None:
    assert HostFacts.from_json(json.loads(json.dumps(FACTS.to_json()))) == FACTS


@pytest.mark.parametrize("data", [{}, {**FACTS.to_json(), "cores": ["x"]}, {"found": 1}])
def test_facts_that_cannot_be_read_are_an_error(data: dict) -> None:
    with pytest.raises(ProtocolError, match="facts of a host: they cannot be read: "):
        HostFacts.from_json(data)


def test_only_variables_that_place_ranks_leave_the_host() -> None:
    environ = {"CUDA_VISIBLE_DEVICES": "1", "AWS_SECRET": "x", "TPU_WORKER_ID": "0", "PATH": "y"}
    assert host.excerpt(environ) == {"CUDA_VISIBLE_DEVICES": "1", "TPU_WORKER_ID": "0"}


def test_an_agent_of_another_version_is_refused() -> None:
    assert host.refusal({"version": host.VERSION}) == ""
    told = f"the agent speaks version 1 of the control plane, the head version {host.VERSION}; "
    assert host.refusal({"version": 1}).startswith(told)
