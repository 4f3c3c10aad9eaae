"""What keeps a process from a TPU, told from files that are made for the test."""

import fcntl
import importlib.metadata
import os

import pytest

from torch_xdist.system import tpu_host


@pytest.fixture
def proc(tmp_path):
    """A process 7 that has a chip open."""
    folder = tmp_path / "proc" / "7"
    (folder / "fd").mkdir(parents=True)
    (folder / "cmdline").write_text("python\0train.py\0")
    os.symlink("/dev/accel0", folder / "fd" / "3")
    return tmp_path / "proc"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "libtpu_lockfile"
    path.touch()
    return path


def test_who_has_a_chip_or_the_lock_is_named(proc, file):
    (proc / "locks").write_text(f"1: FLOCK  ADVISORY  WRITE 7 08:01:{file.stat().st_ino} 0 EOF\n")
    found = tpu_host.lock(file, proc)
    assert found.holder == (str(file), 7, "python train.py")
    assert tpu_host.why_busy(proc, file) == (
        f"process 7 (python train.py) has /dev/accel0; process 7 (python train.py) has {file}"
    )


def test_a_real_lock_is_seen(file):
    with file.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert tpu_host.lock(file).holder.pid == os.getpid()
    assert tpu_host.lock(file).holder is None


def test_a_file_that_is_left_is_named_with_its_owner(file, monkeypatch):
    monkeypatch.setattr(tpu_host.os, "access", lambda path, mode: False)
    why = tpu_host.why_left(tpu_host.lock(file), file)
    owner = tpu_host.pwd.getpwuid(os.getuid()).pw_name
    assert why.startswith(f"{file} belongs to {owner} and nobody has it locked: it is left over")
    assert why.endswith(f"sudo rm {file}")


def test_a_file_that_libtpu_can_take_and_none_at_all_are_no_trouble(file, tmp_path):
    assert tpu_host.why_left(tpu_host.lock(file), file) == ""
    assert tpu_host.lock(tmp_path / "none") is None


REQUIRED = [
    "jaxlib<=0.10.2,>=0.10.1",
    'jaxlib==0.10.1; extra == "ci"',
    'libtpu==0.0.42.*; extra == "tpu"',
    "numpy>=2",
]


@pytest.mark.parametrize(
    ("jaxlib", "libtpu", "words"),
    [
        ("0.10.2", "0.0.42.1", []),
        ("0.10.1", None, []),
        ("0.10.2", "0.0.41", ["libtpu 0.0.41 is installed, and ==0.0.42.* is needed"]),
        (
            "0.9.0",
            "0.0.43.1",
            ["jaxlib 0.9.0 is installed, and <=0.10.2,>=0.10.1 is needed", "libtpu 0.0.43.1"],
        ),
    ],
)
def test_releases_that_do_not_go_together_are_named(jaxlib, libtpu, words, monkeypatch):
    def version(name):
        found = {"jax": "0.10.2", "jaxlib": jaxlib, "libtpu": libtpu}[name]
        if found is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return found

    monkeypatch.setattr(importlib.metadata, "requires", lambda _: REQUIRED)
    monkeypatch.setattr(importlib.metadata, "version", version)
    why = tpu_host.why_unfit()
    assert all(word in why for word in words) and bool(why) is bool(words)
    assert not why or why.endswith("pip install 'jax[tpu]==0.10.2'")


def test_what_is_installed_here_goes_together():
    assert tpu_host.why_unfit() == ""


@pytest.mark.parametrize(
    ("version", "bounds", "fits"),
    [
        ("1.2", ">=1.2.0", True),
        ("1.2.1", "<1.2", False),
        ("1.2.3.dev4", "==1.2.3", True),
        ("1.3", "!=1.3.*", False),
        ("2.0", ">1,<2", False),
        ("1.0", "===1.0", True),
    ],
)
def test_bounds_are_read_as_pip_does(version, bounds, fits):
    assert tpu_host._is_within(version, bounds) is fits


def test_a_host_may_have_chips_by_its_files_or_by_its_cards(tmp_path):
    dev, pci = tmp_path / "dev", tmp_path / "pci"
    card = pci / "0000:00:05.0"
    for folder in (dev / "vfio", card):
        folder.mkdir(parents=True)
    (dev / "vfio" / "vfio").touch()
    (card / "vendor").write_text("0x1ae0\n")
    assert not tpu_host.may_have_chips(dev, pci)
    # A network card of the same vendor.
    (card / "device").write_text("0x0042\n")
    assert not tpu_host.may_have_chips(dev, pci)
    (card / "device").write_text("0x0063\n")
    assert tpu_host.may_have_chips(dev, pci)
    (card / "device").unlink()
    (dev / "vfio" / "0").touch()
    assert tpu_host.may_have_chips(dev, pci)
    (dev / "vfio" / "0").rename(dev / "accel3")
    assert tpu_host.may_have_chips(dev, pci)
    assert not tpu_host.may_have_chips(tmp_path / "none", tmp_path / "none")
