"""What a long wait says."""

from torch_xdist.collectives.narration import NARRATE_S, Narrator


def test_a_wait_is_told_once_a_minute_and_not_sooner(capsys):
    narrator = Narrator(3, 100.0)
    for now_s in (100.0, 100 + NARRATE_S, 101 + NARRATE_S, 102 + NARRATE_S, 102 + 2 * NARRATE_S):
        narrator.look(now_s, lambda: "recv(channel 7) for rank 1")
    assert capsys.readouterr().err.splitlines() == [
        "torch-xdist: rank 3 has waited 61 s in recv(channel 7) for rank 1",
        "torch-xdist: rank 3 has waited 122 s in recv(channel 7) for rank 1",
    ]
