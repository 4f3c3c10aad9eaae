"""Which folders are trusted with programs, and how one is made."""

import os

import pytest

from torch_xdist.core.disk_cache import folder


def test_a_missing_folder_is_made_for_its_owner_alone(tmp_path):
    os.close(folder.opened(str(tmp_path / "a" / "b"), is_named=False))
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777])
def test_a_folder_into_which_others_may_write_is_refused(tmp_path, mode):
    tmp_path.chmod(mode)
    with pytest.raises(PermissionError, match=rf"others may .*mode is {mode:o}\); chmod go-w"):
        folder.opened(str(tmp_path), is_named=False)


def test_a_folder_that_the_user_named_may_be_a_groups_but_not_everybodys(tmp_path):
    tmp_path.chmod(0o770)
    os.close(folder.opened(str(tmp_path), is_named=True))
    tmp_path.chmod(0o777)
    with pytest.raises(PermissionError, match="others may write"):
        folder.opened(str(tmp_path), is_named=True)


def test_a_folder_of_somebody_else_is_refused(tmp_path, monkeypatch):
    tmp_path.chmod(0o700)
    monkeypatch.setattr(os, "geteuid", lambda: 4321)
    with pytest.raises(PermissionError, match=r"belongs to user .*, and this is user 4321"):
        folder.opened(str(tmp_path), is_named=False)


def test_a_link_in_place_of_the_folder_is_not_followed(tmp_path):
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(OSError):
        folder.opened(str(tmp_path / "link"), is_named=False)
