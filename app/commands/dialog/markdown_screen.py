"""Markdown in the terminal while it is generated: closed blocks are printed once, only the open one is drawn again.

Lines of the open block that have not changed are left alone, so nothing flickers and little is sent. Of an open block
that is taller than the terminal the last lines are shown; all of it is printed once it is closed.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterable
from typing import ClassVar, TextIO

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import Console, RenderableType
from rich.markdown import CodeBlock, Heading, Markdown
from rich.syntax import Syntax
from rich.text import Text
from rich.theme import Theme

from app.commands.dialog.markdown_blocks import Block, MarkdownBlocks
from app.runtime.visible_text import visible

CODE_THEME = "ansi_dark"  # colours of the terminal's palette, which suit its background
MAX_LINES_BEFORE = 60  # of code, read again for the colours of the next line
STYLES = Theme(
    {
        "markdown.code": "cyan",
        "markdown.code_block": "cyan",
        "markdown.h1": "bold underline",
        "markdown.h2": "bold underline",
        "markdown.h3": "bold",
        "markdown.h4": "bold italic",
        "markdown.item.number": "bold",
        "markdown.block_quote": "italic",
        "markdown.table.border": "dim",
        "markdown.table.header": "bold",
    }
)
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_UP, _TO_LINE_BEGIN, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[{}A", "\r", "\x1b[K", "\x1b[J"


class MarkdownScreen:
    """Implements `Screen`: one answer as Markdown on a terminal. One thread."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._console = Console(file=stream, force_terminal=True, theme=STYLES, highlight=False, legacy_windows=False)
        self._blocks = MarkdownBlocks()
        self._has_printed = False
        self._open: list[str] = []  # the drawn lines of the open block; the cursor is behind the last one

    def write(self, text: str) -> None:
        self._draw(self._blocks.feed(visible(text)), self._blocks.open)

    def end(self) -> None:
        self._draw(self._blocks.end(), None)
        self._stream.flush()

    def _draw(self, closed: list[Block], opened: Block | None) -> None:
        size = shutil.get_terminal_size()
        width, height = max(size.columns - 1, 2), max(size.lines - 1, 1)  # a full last column would wrap
        printed = [line for block in closed for line in self._lines_of(block, width)]
        tail = self._lines_of(opened, width, is_closed=False)[-height:] if opened else []
        lines = [*printed, *tail]
        same = _common(self._open, lines)
        if len(lines) < len(self._open):  # the cursor must end behind the last line that stays
            same = min(same, max(len(lines) - 1, 0))
        if same < max(len(self._open), len(lines)):
            self._stream.write(self._moved(same) + self._written(lines[same:]))
        if printed and not tail:
            self._stream.write("\n")
        self._open = tail
        self._stream.flush()

    def _moved(self, same: int) -> str:
        """Return the codes that move the cursor from behind the open lines to the first one that changes."""
        up = len(self._open) - 1 - same
        if not self._open or up < 0:
            return "\n" if self._open else ""
        return _TO_LINE_BEGIN + (_UP.format(up) if up else "")

    def _written(self, lines: list[str]) -> str:
        return f"{_CLEAR_LINE}\n".join(lines) + _CLEAR_LINE + (_CLEAR_BELOW if self._open else "")

    def _lines_of(self, block: Block, width: int, *, is_closed: bool = True) -> list[str]:
        """Return a block as lines with sequences of colours, after a blank line where one belongs."""
        gap = [""] if block.is_apart and self._has_printed else []
        self._has_printed |= is_closed
        return gap + [" " * block.indent + line for line in self._drawn(block, width - block.indent)]

    def _drawn(self, block: Block, width: int) -> list[str]:
        if block.language is not None:
            return self._printed(_highlighted(block.text, block.language, block.before), width)
        lines: list[str] = []
        with contextlib.suppress(Exception):  # of the parser: an answer is shown whatever is in it
            lines = _trimmed(self._printed(_Markdown(block.text), width))
        return lines or self._printed(Text(block.text), width)  # nothing is seen of deep nesting, for example

    def _printed(self, shown: RenderableType, width: int) -> list[str]:
        with self._console.capture() as capture:
            self._console.print(shown, width=max(width, 1), end="")
        return [line.rstrip(" ") for line in capture.get().split("\n")]


def _trimmed(lines: list[str]) -> list[str]:
    """Return lines without blank ones at both ends, of which rich adds some: gaps are decided here."""
    filled = [number for number, line in enumerate(lines) if _COLOURS.sub("", line).strip()]
    return lines[filled[0] : filled[-1] + 1] if filled else []


def _highlighted(line: str, language: str, before: Iterable[str] = ()) -> Text:
    """Return one line of code in colours; the lines before it say whether it is in a string or a comment."""
    code = [*before, line][-MAX_LINES_BEFORE:]
    syntax = Syntax("", language or "text", theme=CODE_THEME, background_color="default")
    lines = syntax.highlight("\n".join(code)).split("\n")
    shown = lines[len(code) - 1] if len(lines) >= len(code) else Text(line)
    shown.overflow, shown.no_wrap = "fold", False
    return shown


class _CodeBlock(CodeBlock):
    """Indented code, and fences within quotes: without a background."""

    def __rich_console__(self, console: Console, options: object) -> Iterable[RenderableType]:
        yield Syntax(
            str(self.text).rstrip(), self.lexer_name, theme=CODE_THEME, background_color="default", word_wrap=True
        )


class _Heading(Heading):
    """A heading at the left, as all text."""

    LEVEL_ALIGN: ClassVar = {}


class _Markdown(Markdown):
    """Markdown as chat models write it: HTML is text, a line end is one, addresses of links are shown."""

    elements: ClassVar = {**Markdown.elements, "heading_open": _Heading, "fence": _CodeBlock, "code_block": _CodeBlock}

    def __init__(self, text: str) -> None:
        super().__init__("", code_theme=CODE_THEME, hyperlinks=False)
        parser = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])
        self.parsed = parser.parse(text)
        _keep_line_ends(self.parsed)


def _keep_line_ends(tokens: Iterable[Token]) -> None:
    for token in tokens:
        if token.type == "softbreak":
            token.type = "hardbreak"
        _keep_line_ends(token.children or ())


def _common(first: list[str], second: list[str]) -> int:
    """Return how many lines at the beginnings are the same."""
    same = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        same += 1
    return same
