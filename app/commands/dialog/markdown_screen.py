"""Markdown in the terminal while it is generated: closed blocks are printed once, only the open one is drawn again.

Rows of the open block that have not changed are left alone, so nothing flickers and little is sent. Of an open block
that is taller than the terminal the last rows are shown; all of it is printed once it is closed. A line of code that is
longer than a row runs on: the terminal wraps it, and so it is copied as one line.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterable
from typing import ClassVar, NamedTuple, TextIO

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.cells import cell_len
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


class _Row(NamedTuple):
    """One row of the terminal, with sequences of colours.

    `goes_on`: the next row is of the same line, so no line end is between them. `is_full`: it fills the row; to clear
    what is behind it would take its last character.
    """

    text: str
    goes_on: bool = False
    is_full: bool = False

    @property
    def cleared(self) -> str:
        """The text, and the code that clears what stood behind it."""
        return self.text if self.is_full else self.text + _CLEAR_LINE


class MarkdownScreen:
    """Implements `Screen`: one answer as Markdown on a terminal. One thread."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._console = Console(file=stream, force_terminal=True, theme=STYLES, highlight=False, legacy_windows=False)
        self._blocks = MarkdownBlocks()
        self._has_printed = False
        self._open: list[_Row] = []  # the drawn rows of the open block; the cursor is behind the last one

    def write(self, text: str) -> None:
        self._draw(self._blocks.feed(visible(text)), self._blocks.open)

    def end(self) -> None:
        self._draw(self._blocks.end(), None)
        self._stream.flush()

    def _draw(self, closed: list[Block], opened: Block | None) -> None:
        size = shutil.get_terminal_size()
        width, height = max(size.columns, 3), max(size.lines - 1, 1)
        printed = [row for block in closed for row in self._rows_of(block, width)]
        tail = self._rows_of(opened, width, is_closed=False)[-height:] if opened else []
        rows = [*printed, *tail]
        same = _common(self._open, rows)
        if len(rows) < len(self._open):  # the cursor must end behind the last row that stays
            same = min(same, max(len(rows) - 1, 0))
        if same < max(len(self._open), len(rows)):
            self._stream.write(self._moved(same) + self._written(rows[same:]))
        if printed and not tail:
            self._stream.write("\n")
        self._open = tail
        self._stream.flush()

    def _moved(self, same: int) -> str:
        """Return the codes that move the cursor from behind the open rows to the first one that changes."""
        up = len(self._open) - 1 - same
        if not self._open or up < 0:
            return "\n" if self._open else ""
        return _TO_LINE_BEGIN + (_UP.format(up) if up else "")

    def _written(self, rows: list[_Row]) -> str:
        """Return the codes that write rows over those of the open block."""
        if not rows:
            return _CLEAR_LINE + (_CLEAR_BELOW if self._open else "")
        written = "".join(row.text if row.goes_on else f"{row.cleared}\n" for row in rows[:-1]) + rows[-1].cleared
        if not self._open:
            return written
        return f"{_CLEAR_BELOW}{written}" if rows[-1].is_full else f"{written}{_CLEAR_BELOW}"

    def _rows_of(self, block: Block, width: int, *, is_closed: bool = True) -> list[_Row]:
        """Return a block as rows, after a blank one where it belongs."""
        gap = [_Row("")] if block.is_apart and self._has_printed else []
        self._has_printed |= is_closed
        return gap + (self._text_rows(block, width) if block.language is None else self._code_rows(block, width))

    def _text_rows(self, block: Block, width: int) -> list[_Row]:
        """Return the rows of Markdown; a full last column would wrap."""
        lines: list[str] = []
        with contextlib.suppress(Exception):  # of the parser: an answer is shown whatever is in it
            lines = _trimmed(self._printed(_Markdown(block.text), width - 1))
        # Nothing is seen of deep nesting, for example.
        return [*map(_Row, lines or self._printed(Text(block.text), width - 1))]

    def _code_rows(self, block: Block, width: int) -> list[_Row]:
        """Return the rows of a line of code, as the terminal wraps it."""
        code = _highlighted(block.text, block.language or "", block.before)
        line = Text(" " * block.indent) + code
        *begun, last = line.divide(_row_ends(line.plain, width))
        rows = [_Row(self._captured(row), goes_on=True, is_full=True) for row in begun]
        return [*rows, _Row(self._captured(last), is_full=cell_len(last.plain) >= width)]

    def _printed(self, shown: RenderableType, width: int) -> list[str]:
        return [line.rstrip(" ") for line in self._captured(shown, width).split("\n")]

    def _captured(self, shown: RenderableType, width: int | None = None) -> str:
        """Return the text and codes of something printed, wrapped at a width; without one each line is whole."""
        with self._console.capture() as capture:
            self._console.print(shown, width=width, end="", soft_wrap=width is None)
        return capture.get()


def _trimmed(lines: list[str]) -> list[str]:
    """Return lines without blank ones at both ends, of which rich adds some: gaps are decided here."""
    filled = [number for number, line in enumerate(lines) if _COLOURS.sub("", line).strip()]
    return lines[filled[0] : filled[-1] + 1] if filled else []


def _highlighted(line: str, language: str, before: Iterable[str] = ()) -> Text:
    """Return one line of code in colours; the lines before it say whether it is in a string or a comment."""
    code = [*before, line][-MAX_LINES_BEFORE:]
    syntax = Syntax("", language or "text", theme=CODE_THEME, background_color="default")
    lines = syntax.highlight("\n".join(code)).split("\n")
    return lines[len(code) - 1] if len(lines) >= len(code) else Text(line)


def _row_ends(line: str, width: int) -> list[int]:
    """Return the positions in a line where a terminal of `width` columns begins a new row."""
    ends, column = [], 0
    for position, char in enumerate(line):
        size = cell_len(char)
        if column and column + size > width:
            ends.append(position)
            column = 0
        column += size
    return ends


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
        _show_addresses_once(self.parsed)


def _keep_line_ends(tokens: Iterable[Token]) -> None:
    for token in tokens:
        if token.type == "softbreak":
            token.type = "hardbreak"
        _keep_line_ends(token.children or ())


def _show_addresses_once(tokens: Iterable[Token]) -> None:
    """Make text of a link whose text is its address."""
    for token in tokens:
        parts = token.children or []
        for start, text, end in zip(parts, parts[1:], parts[2:], strict=False):
            is_link = (start.type, text.type, end.type) == ("link_open", "text", "link_close")
            if is_link and start.attrs["href"] in (text.content, f"mailto:{text.content}"):
                start.type = end.type = "text"


def _common(first: list[_Row], second: list[_Row]) -> int:
    """Return how many rows at the beginnings are the same."""
    same = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        same += 1
    return same
