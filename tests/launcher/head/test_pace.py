"""When the head judges its job: soon after news, else in a small share of its time."""

from torch_xdist.launcher.head.pace import Pace


class Clock:
    """Seconds that pass where a test says so."""

    def __init__(self) -> None:
        self.at_s = 100.0
        self.judged_s: list[float] = []

    def __call__(self) -> float:
        return self.at_s

    def judge_for(self, seconds: float) -> None:
        self.judged_s.append(self.at_s)
        self.at_s += seconds


def paced(clock: Clock) -> Pace:
    return Pace(clock, clock)


def test_what_happened_is_judged_at_once() -> None:
    clock = Clock()
    pace = paced(clock)
    for _ in range(3):
        pace.heard("ended")
        pace.keep(lambda: clock.judge_for(0.5))
        clock.at_s += 0.5
    assert clock.judged_s == [100.0, 101.0, 102.0]


def test_ranks_that_end_one_by_one_are_judged_in_half_of_the_time() -> None:
    clock = Clock()
    pace = paced(clock)
    for _ in range(1000):
        pace.heard("ended")
        pace.keep(lambda: clock.judge_for(0.05))
        clock.at_s += 0.001
    worked_s = 0.05 * len(clock.judged_s)
    assert 0.4 < worked_s / (clock.at_s - 100.0) < 0.55


def test_who_has_news_waits_for_messages_no_longer_than_until_they_are_judged() -> None:
    clock = Clock()
    pace = paced(clock)
    pace.keep(lambda: clock.judge_for(0.1))
    assert pace.wait_s(0.25) == 0.25
    pace.heard("ended")
    assert abs(pace.wait_s(0.25) - 0.1) < 1e-9
    clock.at_s += 0.2
    assert pace.wait_s(0.25) == 0.0


def test_a_busy_machine_makes_no_judgement_dearer() -> None:
    clock = Clock()
    pace = Pace(clock, lambda: 0.0)
    pace.keep(lambda: clock.judge_for(0.5))
    pace.keep(lambda: clock.judge_for(0.5))
    assert len(clock.judged_s) == 2


def test_beats_alone_are_judged_in_a_thirtieth_of_the_time() -> None:
    clock = Clock()
    pace = paced(clock)
    end_s = clock.at_s + 10.0
    while clock.at_s < end_s:
        pace.heard("beats")
        pace.keep(lambda: clock.judge_for(0.01))
        clock.at_s += 0.001
    assert 27 <= len(clock.judged_s) <= 31


def test_time_alone_is_judged_however_long_that_takes() -> None:
    clock = Clock()
    pace = paced(clock)
    pace.keep(lambda: clock.judge_for(3.0))
    clock.at_s += 4.9
    pace.keep(lambda: clock.judge_for(0.0))
    clock.at_s += 0.2
    pace.keep(lambda: clock.judge_for(0.0))
    assert len(clock.judged_s) == 2


def test_news_among_beats_are_not_forgotten() -> None:
    clock = Clock()
    pace = paced(clock)
    pace.keep(lambda: clock.judge_for(0.1))
    clock.at_s += 0.1
    pace.heard("failed")
    pace.heard("beats")
    pace.keep(lambda: clock.judge_for(0.1))
    assert len(clock.judged_s) == 2
