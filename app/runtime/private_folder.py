"""Folders that nobody else may enter, whatever the process's umask is."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory


def make_private_folder(folder: Path) -> None:
    """Make a folder, and those above it that are missing; those that are there stay as they are. Blocks.

    Raises:
        OSError: it cannot be made, or something else is there.
    """
    for one in reversed([folder, *folder.parents]):
        one.mkdir(mode=0o700, exist_ok=True)


def check_can_be_made(folder: Path) -> None:
    """Check that a folder that is not there can be made; nothing is left of the attempt. Blocks.

    Raises:
        OSError: it cannot.
    """
    nearest = next(one for one in folder.absolute().parents if os.path.lexists(one))
    with TemporaryDirectory(dir=nearest):  # permissions do not say it to root, nor of a file system that is read-only
        pass
