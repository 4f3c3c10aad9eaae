"""What travels as the list of a folder, and what a host refuses to read from it."""

import json
import zlib

import pytest

from torch_xdist.launcher.facts.errors import ProtocolError
from torch_xdist.launcher.shipping.manifest import (
    FILE,
    FOLDER,
    LINK,
    Entry,
    Manifest,
    leads_out,
    shown,
    size_text,
)

X = "ab" * 32
Y = "cd" * 32


def packed(*rows: object, name: str = "code") -> bytes:
    return zlib.compress(json.dumps([name, rows]).encode())


def test_a_list_comes_back_as_it_was_also_with_names_that_are_no_text() -> None:
    entries = (
        Entry("pkg", FOLDER),
        Entry("pkg/a b\udcff.py", FILE, X, 12, 1_700_000_000_123_456_789, True),
        Entry("here", LINK, "pkg/../pkg"),
    )
    made = Manifest("code", entries)
    assert Manifest.from_bytes(made.to_bytes()) == made
    assert made.total_bytes == 12 and shown("a\udcff") == "a�"


def test_files_of_one_content_stand_together() -> None:
    files = [Entry("a", FILE, X, 1), Entry("b", FILE, Y, 1), Entry("c", FILE, X, 1)]
    assert sorted(Manifest("code", (Entry("d", FOLDER), *files)).alike()) == [[1, 3], [2]]


@pytest.mark.parametrize("data", [b"", b"junk", zlib.compress(b"{"), packed([1, 2]), packed(3)])
def test_what_is_no_list_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="shipped code: its list cannot be read: "):
        Manifest.from_bytes(data)


def test_a_list_that_would_fill_the_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch_xdist.launcher.shipping.manifest._MOST_BYTES", 1000)
    with pytest.raises(ProtocolError, match="its list cannot be read"):
        Manifest.from_bytes(zlib.compress(b'["x", []' + b" " * 100_000 + b"]"))


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/", "a\0b"])
def test_a_folder_of_another_name_than_one_in_a_folder_is_refused(name: str) -> None:
    with pytest.raises(ProtocolError, match="can be no name of a folder"):
        Manifest.from_bytes(packed(name=name))


@pytest.mark.parametrize(
    "path", ["/etc/x", "../x", "a/../../x", "a//b", "", ".", "a/b", "x\0", "there"]
)
def test_a_path_that_leads_elsewhere_or_is_there_already_is_refused(path: str) -> None:
    there = ["there", FILE, X, 1, 1, False]
    with pytest.raises(ProtocolError, match="can be no path in a folder"):
        Manifest.from_bytes(packed(there, [path, FILE, X, 1, 1, False]))


def test_nothing_may_lie_below_a_link_or_a_file() -> None:
    for first in (["a", LINK, "b", 0, 0, False], ["a", FILE, X, 1, 1, False]):
        with pytest.raises(ProtocolError, match="'a/x' can be no path in a folder"):
            Manifest.from_bytes(packed(first, ["a/x", FILE, X, 1, 1, False]))


@pytest.mark.parametrize("target", ["/etc", "..", "../x", "a/../../x", "", "a\0"])
def test_a_link_that_leads_out_is_refused(target: str) -> None:
    with pytest.raises(ProtocolError, match=r"the link 'here' to .* leads out of it"):
        Manifest.from_bytes(packed(["here", LINK, target, 0, 0, False]))


@pytest.mark.parametrize(
    "row",
    [
        ["a", "pipe", X, 1, 1, False],
        ["a", FILE, "../../etc", 1, 1, False],
        ["a", FILE, X.upper(), 1, 1, False],
        ["a", FILE, X, -1, 1, False],
    ],
)
def test_what_is_no_file_is_refused(row: list[object]) -> None:
    with pytest.raises(ProtocolError, match="'a' is no file, folder or link"):
        Manifest.from_bytes(packed(row))


def test_a_link_may_go_up_as_far_as_the_folder() -> None:
    assert not leads_out("a/b/link", "../../c") and leads_out("a/b/link", "../../../c")
    assert leads_out("a/link", "../x/../../code/x")


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (999, "999 bytes"),
        (1500, "1.5 kB"),
        (999_600, "1 MB"),
        (2.5e9, "2.5 GB"),
        (4e12, "4e+03 GB"),
    ],
)
def test_a_size_is_told_in_the_unit_that_fits(size: float, text: str) -> None:
    assert size_text(size) == text
