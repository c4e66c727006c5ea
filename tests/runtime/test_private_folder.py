"""Folders for private files: nobody else may enter them, whatever the umask says."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.runtime.private_folder import check_can_be_made, make_private_folder


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_umask")
def test_all_folders_that_are_made_are_private_and_the_others_stay(tmp_path: Path):
    (tmp_path / "theirs").mkdir(mode=0o755)
    for _ in range(2):
        make_private_folder(tmp_path / "theirs" / "a" / "b")
    modes = [(tmp_path / "theirs" / name).stat().st_mode & 0o777 for name in (".", "a", "a/b")]
    assert modes == [0o755, 0o700, 0o700]


@pytest.mark.parametrize("kind", ["file", "dangling link", "pipe"])
def test_anything_else_in_its_place_is_an_error(kind: str, tmp_path: Path):
    place = tmp_path / "place"
    {
        "file": place.touch,
        "dangling link": lambda: place.symlink_to(tmp_path / "nowhere"),
        "pipe": lambda: os.mkfifo(place),
    }[kind]()
    for folder in (place, place / "below"):
        with pytest.raises(OSError):
            make_private_folder(folder)


def test_whether_a_folder_can_be_made_is_checked_without_a_trace(tmp_path: Path):
    check_can_be_made(tmp_path / "a" / "b")
    assert [*tmp_path.iterdir()] == []
    (tmp_path / "file").touch()
    with pytest.raises(OSError):
        check_can_be_made(tmp_path / "file" / "below")
