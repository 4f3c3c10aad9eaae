"""The head's queue: in order, and without more lines of ranks than may wait."""

from torch_xdist.launcher.head.inbox import Inbox


def log(text: str, lines: int = 1, unshown: int = 0) -> dict:
    return {"op": "log", "rank": 0, "lines": [text] * lines, "unfinished": "", "unshown": unshown}


def test_messages_come_in_the_order_they_were_put():
    inbox = Inbox()
    inbox.put(0, log("a"), b"")
    inbox.put(1, {"op": "ended"}, b"blob")
    inbox.tell({"op": "asked"})
    assert inbox.take() == (0, log("a"), b"")
    assert inbox.take(1.0) == (1, {"op": "ended"}, b"blob")
    assert inbox.take() == (-1, {"op": "asked"}, b"")
    assert inbox.take() is None and inbox.take(0.01) is None


def test_lines_beyond_the_limit_are_counted_and_news_comes_behind_few():
    inbox = Inbox(most_bytes=1000)
    for _ in range(1000):
        inbox.put(0, log("x" * 500, lines=2, unshown=1), b"")
    inbox.put(0, {"op": "ended"}, b"")
    assert inbox.take()[1]["op"] == "log"
    assert inbox.take() == (0, {"op": "ended"}, b"")
    assert inbox.unshown == 999 * 3


def test_the_next_lines_tell_how_many_were_left_out():
    inbox = Inbox(most_bytes=100)
    for text in ("a", "b", "c"):
        inbox.put(0, log(text), b"")
    assert inbox.take()[1] == log("a", unshown=0)
    inbox.put(0, log("d", unshown=1), b"")
    assert inbox.take()[1] == log("d", unshown=3)
    assert inbox.unshown == 0


def beats(number: int) -> dict:
    return {"op": "beats", "number": number}


def test_beats_wake_nobody_and_come_when_nothing_else_does():
    inbox = Inbox()
    for number in range(3):
        inbox.put(number, beats(number), b"")
    assert inbox.take() is None
    assert [inbox.take(0.01)[1], inbox.take()[1], inbox.take()[1]] == [*map(beats, range(3))]
    assert inbox.take(0.01) is None


def test_what_comes_after_beats_stays_behind_them():
    inbox = Inbox()
    inbox.put(0, beats(0), b"")
    inbox.put(0, {"op": "ended"}, b"")
    inbox.put(0, beats(1), b"")
    inbox.put(0, log("a"), b"")
    found = [inbox.take()[1]["op"] for _ in range(4)]
    assert found == ["beats", "ended", "beats", "log"]
