"""What a long wait says."""

from torch_xdist.collectives.wait_report import REPORT_EVERY_S, WaitReport


def test_a_wait_is_told_once_a_minute_and_not_sooner(capsys):
    narrator = WaitReport(3, 100.0)
    for now_s in (
        100.0,
        100 + REPORT_EVERY_S,
        101 + REPORT_EVERY_S,
        102 + REPORT_EVERY_S,
        102 + 2 * REPORT_EVERY_S,
    ):
        narrator.look(now_s, lambda: "recv(channel 7) for rank 1")
    assert capsys.readouterr().err.splitlines() == [
        "torch-xdist: rank 3 has waited 61 s in recv(channel 7) for rank 1",
        "torch-xdist: rank 3 has waited 122 s in recv(channel 7) for rank 1",
    ]
