"""The journal that a process leaves when it is killed."""

import shutil


def killed(journal: str) -> str:
    """The journal that a process leaves which is killed now."""
    copy = f"{journal}-of-a-killed-process"
    for suffix in ("", "-wal"):
        shutil.copy(f"{journal}{suffix}", f"{copy}{suffix}")
    return copy
