"""Bytes in, lines out: the same lines however the bytes are chopped."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_xdist.launcher.on_host.pump import LineCutter


def cut(*chunks, longest=4000):
    cutter = LineCutter(longest)
    lines = [line for chunk in chunks for line in cutter.feed(chunk)]
    return lines + cutter.finish()


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"a\nb\n", ["a", "b"]),
        (b"a\n\nb", ["a", "", "b"]),
        (b"no newline", ["no newline"]),
        (b"dos\r\nline\r\n", ["dos", "line"]),
        (b"10%\r20%\r30%\n", ["30%"]),
        (b"10%\r20%\r   \r\n", ["20%"]),
        (b"10%\r20%\r", ["20%"]),
        (b"\xff\xfeok\n", ["\ufffd\ufffdok"]),
        ("käse\n".encode()[:2] + b"\n", ["k\ufffd"]),
        (b"nul\x00l\n", ["nul\x00l"]),
    ],
)
def test_lines_end_at_newlines_and_returns(data, lines):
    assert cut(data) == lines


def test_a_multi_byte_character_may_be_cut_between_two_reads():
    data = "grüße ∑\n".encode()
    for place in range(len(data)):
        assert cut(data[:place], data[place:]) == ["grüße ∑"]


def test_long_lines_are_bounded_and_say_so():
    assert cut(b"x" * 30 + b"\nshort\n", longest=10) == [
        "x" * 10 + " ... [20 more characters in the log]",
        "short",
    ]


def test_a_line_without_an_end_takes_no_memory():
    cutter = LineCutter(100)
    for _ in range(1000):
        assert cutter.feed(b"y" * 10_000) == []
        assert len(cutter.shown()) < 200
    assert cutter.finish()[0].endswith("[9999900 more characters in the log]")


def test_what_an_unfinished_line_shows_can_be_asked():
    cutter = LineCutter()
    cutter.feed(b"epoch 1: 10%\repoch 1: 20%")
    assert cutter.shown() == "epoch 1: 20%"
    cutter.feed(b"\r")
    assert cutter.shown() == "epoch 1: 20%"
    assert cutter.feed(b"\ndone\n") == ["epoch 1: 20%", "done"]
    assert cutter.shown() == ""


PIECES = st.lists(
    st.sampled_from([b"a", b"bc", b"\n", b"\r", b"\r\n", b" ", "ü".encode(), b"\xc3", b"\xff"])
)


@settings(deadline=None)
@given(PIECES, st.integers(1, 7), st.integers(1, 5))
def test_chopping_changes_nothing(pieces, size, longest):
    data = b"".join(pieces)
    chopped = [data[start : start + size] for start in range(0, len(data), size)]
    assert cut(*chopped, longest=longest) == cut(data, longest=longest)


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_give_one_line_per_newline_at_most_one_more_and_no_line_ends_in_them(data):
    lines = cut(data)
    assert data.count(b"\n") <= len(lines) <= data.count(b"\n") + 1
    assert not any("\n" in line or "\r" in line for line in lines)


@settings(deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r"))))
def test_plain_lines_come_out_as_they_went_in(lines):
    assert cut("".join(line + "\n" for line in lines).encode()) == lines
