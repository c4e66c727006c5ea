"""Splits Markdown that arrives in pieces into blocks: what is closed never changes again, what is open may.

Rules of this file (a small part of CommonMark: only what decides where a block ends):
- A blank line closes a paragraph, a quote and a table; a heading closes with its line.
- A list closes item by item: an item ends at the next mark that is not deeper than its own, or at a text that is not
  indented after a blank line. So each line of a long list is drawn once.
- Of a fenced block each line of code is a block of its own, with the lines before it, which decide its colours.
- A paragraph without an end is closed after MAX_OPEN_CHARS: the open text is drawn anew for each piece.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MAX_OPEN_CHARS = 4000
_FENCE = re.compile(r"([ \t]*)(`{3,}(?!.*`)|~{3,})[ \t]*([\w+#.-]*)")
_HEADING = re.compile(r" {0,3}#{1,6}(?:[ \t]|$)")
_ITEM = re.compile(r"( *)(?:[-*+]|\d{1,9}[.)])(?:[ \t]|$)")


class Block(NamedTuple):
    """A closed part of a text. `is_apart`: a blank line comes before it, unless it is the first one.

    `language` is None for Markdown. Otherwise `text` is one line of code, `before` has the lines of its block before
    it, and `indent` the blanks before its fence.
    """

    text: str
    is_apart: bool
    language: str | None = None
    before: tuple[str, ...] = ()
    indent: int = 0


class Fence(NamedTuple):
    """The line that begins a block of code: its marks, its language, and the blanks before it."""

    mark: str
    language: str
    indent: int

    @classmethod
    def of(cls, line: str) -> Fence | None:
        """Return the fence that a line of text is; None if it is none."""
        found = _FENCE.match(line)
        return cls(found[2], found[3], len(found[1].expandtabs(4))) if found else None

    def is_closed_by(self, line: str) -> bool:
        """Return whether a line has at least as many of the same marks, and nothing else."""
        marks = line.strip()
        return len(marks) >= len(self.mark) and marks == self.mark[0] * len(marks)


class MarkdownBlocks:
    """The blocks of one text. One thread."""

    def __init__(self) -> None:
        self._rest = ""  # the line that has not ended
        self._lines: list[str] = []  # of the open block
        self._fence: Fence | None = None
        self._code: list[str] = []  # of the open fence
        self._is_apart = False  # what comes next

    def feed(self, text: str) -> list[Block]:
        """Take the next piece of the text; return the blocks that it closes."""
        *lines, self._rest = (self._rest + text).split("\n")
        closed = [block for line in lines for block in self._take(line)]
        if self._fence is None and sum(map(len, self._lines)) + len(self._rest) > MAX_OPEN_CHARS:
            head, _, self._rest = self._rest.rpartition(" ")
            self._lines.append(head or self._rest)
            self._rest = self._rest if head else ""
            closed += self._close()
        return closed

    def end(self) -> list[Block]:
        """Close the open blocks and return them: the text has ended."""
        closed = self._take(self._rest) if self._rest else []
        self._rest = ""
        return closed + self._close()

    @property
    def open(self) -> Block | None:
        """The next block, as far as it has arrived."""
        if self._fence is not None:
            return self._code_block(self._rest) if self._rest else None
        text = "\n".join([*self._lines, self._rest])
        return Block(text, self._is_apart) if text.strip() else None

    def _take(self, line: str) -> list[Block]:
        if self._fence is not None:
            return self._take_code(self._fence, line)
        if fence := Fence.of(line):
            closed = self._close()
            self._fence = fence
            self._is_apart = True
            return closed
        if not line.strip():
            return self._take_blank()
        closed = self._close() if self._begins(line) else []
        self._lines.append(line)
        if _HEADING.match(line):
            closed += self._close()
            self._is_apart = True
        return closed

    def _take_code(self, fence: Fence, line: str) -> list[Block]:
        if fence.is_closed_by(line):
            self._fence, self._code, self._is_apart = None, [], True
            return []
        block = self._code_block(line)
        self._code.append(block.text)
        self._is_apart = False
        return [block]

    def _take_blank(self) -> list[Block]:
        if self._lines and _ITEM.match(self._lines[0]):  # an indented text may go on with the item
            self._lines.append("")
            return []
        closed = self._close()
        self._is_apart = True
        return closed

    def _begins(self, line: str) -> bool:
        """Return whether a line begins a block, instead of going on with the open one."""
        if not self._lines:
            return False
        if _HEADING.match(line):
            return True
        first, mark = _ITEM.match(self._lines[0]), _ITEM.match(line)
        if mark and (first is None or len(mark[1]) <= len(first[1])):
            return True
        return first is not None and not self._lines[-1] and not line.startswith(" ")

    def _close(self) -> list[Block]:
        lines, self._lines = self._lines, []
        text = "\n".join(lines).rstrip()
        if not text:
            return []
        block = Block(text, self._is_apart)
        self._is_apart = not lines[-1] or _HEADING.match(text) is not None
        return [block]

    def _code_block(self, line: str) -> Block:
        assert self._fence is not None
        indent = self._fence.indent
        line = line.expandtabs(4)
        line = line[min(indent, len(line) - len(line.lstrip(" "))) :]
        return Block(line, self._is_apart, self._fence.language, tuple(self._code), indent)
