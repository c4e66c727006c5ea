"""What the options of several benchmarks have in common: lists of names, and the folder of the figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from app.config.nearest import nearest
from app.contract.errors import ConfigurationError


def chosen(given: str | None, known: Sequence[str], option: str) -> list[str]:
    """Return the names of a comma-separated list in the order of `known`, whatever their case; all if none is given.

    Raises:
        ConfigurationError: one is unknown (the nearest is named), or there is none.
    """
    if given is None:
        return list(known)
    names = {name.strip().lower(): name.strip() for name in given.split(",") if name.strip()}
    if not names:
        raise ConfigurationError(f"--{option} is empty; known: {', '.join(known)}")
    for lower, name in names.items():
        if lower not in map(str.lower, known):
            raise ConfigurationError(f"--{option}: unknown {name!r}{nearest(name, known)}; known: {', '.join(known)}")
    return [name for name in known if name.lower() in names]


def make_folder(folder: Path, option: str) -> None:
    """Make the folder that an option names.

    Raises:
        ConfigurationError: it cannot be one.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"--{option} {folder} cannot be a folder: {error.strerror}") from None
