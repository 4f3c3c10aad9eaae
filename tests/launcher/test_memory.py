"""The watch for out of memory, on made-up cgroup files of both versions."""

import pytest

from torch_xdist.launcher.memory import OomWatch


def made(root, cgroup, folder, **files):
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(cgroup)
    place = root / "sys/fs/cgroup" / folder
    place.mkdir(parents=True)
    for name, text in files.items():
        (place / name.replace("__", ".")).write_text(text)
    return place


@pytest.mark.parametrize(
    ("cgroup", "folder", "name", "text"),
    [
        ("0::/job/a\n", "job/a", "memory__events", "low 0\nmax 3\noom 1\noom_kill {}\n"),
        ("0::/hidden/path\n", ".", "memory__events", "oom_kill {}\n"),
        (
            "9:memory:/job\n1:name=systemd:/x\n",
            "memory/job",
            "memory__oom_control",
            "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n",
        ),
    ],
)
def test_a_kill_is_seen_once(tmp_path, cgroup, folder, name, text):
    place = made(tmp_path, cgroup, folder, **{name: text.format(2)})
    watch = OomWatch(root=tmp_path)
    assert not watch.killed()
    (place / name.replace("__", ".")).write_text(text.format(3))
    assert watch.killed()
    assert not watch.killed()


@pytest.mark.parametrize(
    ("name", "text", "limit"),
    [
        ("memory__max", "1048576\n", 1048576),
        ("memory__max", "max\n", None),
        ("memory__limit_in_bytes", "9223372036854771712\n", None),
    ],
)
def test_the_limit_is_read(tmp_path, name, text, limit):
    made(tmp_path, "0::/\n", "", **{name: text, "memory__events": "oom_kill 0\n"})
    assert OomWatch(root=tmp_path).limit_bytes() == limit


def test_without_cgroups_nothing_is_out_of_memory(tmp_path):
    watch = OomWatch(root=tmp_path)
    assert not watch.killed()
    assert watch.limit_bytes() is None


def test_a_real_process_can_be_watched():
    assert not OomWatch().killed()
