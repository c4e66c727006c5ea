"""The names of a model's files that are split into parts: NAME-00001-of-00003.gguf, or .safetensors."""

from __future__ import annotations

import re

MAX_PARTS = 9999
"""Names that announce more, or a part that is none of them, are those of files that are not split."""
_PART = re.compile(r"-(\d{5})-of-(\d{5})(?=\.(?:gguf|safetensors)\Z)", re.ASCII)


def parts_of(path: str) -> list[str]:
    """Return the names of all parts of a split file, in order; a file that is not split is its only part."""
    match = _part_in(path)
    if match is None:
        return [path]
    first, last = path[: match.start()], path[match.end() :]
    return [f"{first}-{part:05}-of-{match[2]}{last}" for part in range(1, int(match[2]) + 1)]


def without_part(name: str) -> str:
    """Return the name of a file without the number of its part; of a file that is not split, its name."""
    match = _part_in(name)
    return name if match is None else name[: match.start()] + name[match.end() :]


def _part_in(name: str) -> re.Match[str] | None:
    """Return the number of a part and that of all parts, as a name has them; None if the file is not split."""
    match = _PART.search(name)
    return match if match is not None and 1 <= int(match[1]) <= int(match[2]) <= MAX_PARTS else None
