"""Capabilities of a terminal (width, block characters, colours), and bars drawn with them."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import TextIO

MIN_WIDTH, DEFAULT_WIDTH, MAX_WIDTH = 40, 80, 100
_EIGHTHS = " ▏▎▍▌▋▊▉█"


class Colour(IntEnum):
    """Colours of the terminal's palette, which suit its background."""

    BOLD = 1
    DIM = 2
    RED = 31
    GREEN = 32
    YELLOW = 33
    BLUE = 34
    MAGENTA = 35


@dataclass(frozen=True, slots=True)
class Terminal:
    """Output on one stream: number of columns, whether more than ASCII can be shown, whether in colours."""

    width: int = DEFAULT_WIDTH
    is_unicode: bool = True
    is_coloured: bool = False

    @classmethod
    def of(cls, stream: TextIO, environ: Mapping[str, str]) -> Terminal:
        """Describe `stream`: colours only on a terminal with colours and without NO_COLOR (https://no-color.org)."""
        encoding = (stream.encoding or "ascii").lower().replace("-", "").replace("_", "")
        is_terminal = stream.isatty()
        columns = shutil.get_terminal_size((DEFAULT_WIDTH, 24)).columns if is_terminal else DEFAULT_WIDTH
        return cls(
            width=max(MIN_WIDTH, min(columns, MAX_WIDTH)),
            is_unicode=encoding.startswith("utf"),
            is_coloured=is_terminal and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb",
        )

    def paint(self, text: str, colour: Colour | None) -> str:
        """Return `text` in a colour, if one is given and the terminal has colours."""
        return f"\x1b[{colour.value}m{text}\x1b[0m" if self.is_coloured and colour is not None and text else text

    def text(self, text: str) -> str:
        """Return `text` in characters that the terminal can show."""
        return text if self.is_unicode else text.replace("×", "x").encode("ascii", "replace").decode()

    def bar(self, share: float, width: int, begin: float = 0.0) -> str:
        """Return a bar of `share` (0..1) of `width` columns that begins at `begin` (0..1).

        A share above 0 is drawn with at least one character.
        """
        share, begin = min(max(share, 0.0), 1.0), min(max(begin, 0.0), 1.0)
        first = min(round(begin * width), width - 1)
        eighths = min(round(share * width * 8), (width - first) * 8)
        if share > 0:
            eighths = max(eighths, 1)
        if not self.is_unicode:
            return " " * first + "#" * -(-eighths // 8)
        return " " * first + "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def own_terminal() -> Terminal:
    """Describe standard output."""
    return Terminal.of(sys.stdout, os.environ)
