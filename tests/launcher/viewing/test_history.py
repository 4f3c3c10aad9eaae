"""What is kept of a job's past for those who look later."""

from torch_xdist.launcher.viewing.history import History


def log(rank: int, *lines: str) -> dict:
    return {"rank": rank, "lines": list(lines), "unfinished": ""}


def lines(events) -> list[str]:
    return [line for event, facts in events if event == "log" for line in facts["lines"]]


def filled() -> History:
    history = History()
    history.add("attempt", {"number": 0})
    history.add("start", {"text": "begun"})
    history.add("log", log(0, "a", "b", "c"))
    history.add("note", {"text": "told"})
    history.add("beats", {"up": 1})
    history.add("log", log(1, "d"))
    history.add("beats", {"up": 2})
    return history


def test_the_newest_lines_come_with_what_stands_between_them() -> None:
    told = list(filled().last(2))
    assert [event for event, _ in told] == ["attempt", "log", "note", "log", "beats"]
    assert lines(told) == ["c", "d"] and told[-1][1] == {"up": 2}


def test_without_a_past_only_how_the_job_stands_is_told() -> None:
    assert [event for event, _ in filled().last(0)] == ["attempt", "beats"]


def test_all_that_is_kept_comes_in_order() -> None:
    assert lines(filled().last(None)) == ["a", "b", "c", "d"]


def test_lines_for_which_there_is_no_room_are_counted() -> None:
    history = History(most_bytes=5000)
    for number in range(100):
        history.add("log", log(0, str(number)))
    told = list(history.last(None))
    kept = lines(told)
    assert kept[-1] == "99" and 2 <= len(kept) < 50
    assert told[0][1]["text"] == f"[{100 - len(kept)} lines not shown, they are in the logs]"
