"""What the metadata server's answers mean."""

import pytest

from torch_xdist.launcher.on_host.notices import cloud


@pytest.mark.parametrize(
    ("key", "answer", "why"),
    [
        ("preempted", "TRUE\n", "the cloud has preempted it (instance/preempted is TRUE)"),
        ("preempted", "FALSE", ""),
        ("maintenance-event", "NONE", ""),
        ("maintenance-event", "MIGRATE_ON_HOST_MAINTENANCE", ""),
        (
            "maintenance-event",
            "TERMINATE_ON_HOST_MAINTENANCE",
            "the cloud ends it for maintenance (instance/maintenance-event is"
            " TERMINATE_ON_HOST_MAINTENANCE)",
        ),
    ],
)
def test_known_answers_say_whether_the_machine_stays(key, answer, why):
    assert cloud.why_taken(key, answer) == why
    assert cloud.why_unknown(key, answer) == ""


@pytest.mark.parametrize("answer", ["", "<html>\nno", '{"preempted": true}', "true"])
def test_other_answers_mean_nothing_and_are_told(answer):
    assert cloud.why_taken("preempted", answer) == ""
    told = cloud.why_unknown("preempted", answer)
    assert told.startswith("instance/preempted is ") and "TRUE, FALSE is needed" in told
