"""Folders that nobody else may enter, whatever the process's umask is."""

from __future__ import annotations

from pathlib import Path


def make_private_folder(folder: Path) -> None:
    """Make a folder, and those above it that are missing; those that are there stay as they are. Blocks.

    Raises:
        OSError: it cannot be made, or something else is there.
    """
    for one in reversed([folder, *folder.parents]):
        one.mkdir(mode=0o700, exist_ok=True)
