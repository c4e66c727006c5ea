"""Reads the text of an answer and the calls in it, one after another, in any syntax."""

from __future__ import annotations

import re
from collections.abc import Callable

from app.text.calls.call_marks import CallMarks
from app.text.calls.tool_schemas import ToolSchemas
from app.text.reading.answer_events import Arguments, CallBegin, CallEnd
from app.text.reading.marks import Marks
from app.text.reading.reader import Reader, Reading

_NAME = re.compile(r'[^\s<>{}()\[\]"\']{1,256}')


class CallReader:
    """The calls of one answer; `marks` are resolved. One owner.

    A closing mark belongs to the call before it, once for each call; elsewhere it is text. A mark or a call that is cut
    off by the end of the answer is text only if no call came before.

    Attributes:
        reader: the text, for the syntax that reads a call.
        schemas: those of the request's tools.
    """

    def __init__(self, marks: CallMarks, reader: Reader, schemas: ToolSchemas) -> None:
        self.reader = reader
        self.schemas = schemas
        self._marks = marks
        self._due: list[str] = []  # closing marks that may still come

    def read(self, read_calls: Callable[[str], Reading[None]]) -> Reading[None]:
        """Read the answer to its end: text, and where it has a mark that begins calls what `read_calls` reads."""
        reader, begins, closes = self.reader, self._marks.begins, self._marks.closes
        marks = Marks((*begins, *closes))
        if self._marks.is_bare:
            reader.keep()
            yield from self._read_one(read_calls, "")
        while True:
            if reader.num_calls and not reader.has_text:
                yield from reader.skip()
            cut_off = Marks((*begins, *self._due)) if reader.num_calls else None
            mark = yield from reader.pass_until(marks, reader.add_text, cut_off=cut_off)
            if mark in self._due:
                self.close(mark)
                reader.drop()
            elif mark and mark not in closes:
                yield from self._read_one(read_calls, mark)
            elif not mark and reader.num_calls:
                reader.drop()  # blanks behind a call, and a mark that is cut off
            else:
                reader.release()
            if not mark:
                return

    def begin(self, name: str) -> None:
        """Begin a call: what was kept is part of it."""
        self.reader.drop()
        self._due = list(self._marks.closes)
        self.reader.events.append(CallBegin(self.reader.num_calls, name))
        self.reader.num_calls += 1

    def add(self, text: str) -> None:
        """Add a piece of the call's arguments."""
        if text:
            self.reader.events.append(Arguments(self.reader.num_calls - 1, text))

    def close(self, mark: str) -> None:
        """Note that a closing mark of the call was read."""
        self._due.remove(mark)

    def end(self, *, is_whole: bool) -> None:
        """End the call, whose arguments are complete (`is_whole`) or break off; what follows is kept."""
        if is_whole:
            self.reader.events.append(CallEnd(self.reader.num_calls - 1))
        self.reader.keep()

    def _read_one(self, read_calls: Callable[[str], Reading[None]], mark: str) -> Reading[None]:
        reader, num_before = self.reader, self.reader.num_calls
        reader.ran_out = False
        if (yield from self._enter(mark)):
            yield from read_calls(mark)
        if reader.ran_out and reader.num_calls:
            reader.drop_rest()
            return
        if reader.num_calls == num_before:
            reader.release()
            return
        while (yield from self._read_close()):
            reader.keep()
        if reader.ran_out:
            reader.drop_rest()
        else:
            reader.rewind()

    def _enter(self, mark: str) -> Reading[bool]:
        """Consume what stands before a name, unless it was the mark; models leave out what comes before it."""
        name_open = self._marks.name_open
        if not name_open or mark == name_open:
            return True
        yield from self.reader.skip()
        return (yield from self.reader.accept(name_open))

    def _read_close(self) -> Reading[bool]:
        """Consume blanks and a closing mark that is due."""
        yield from self.reader.skip()
        for mark in self._due:
            if (yield from self.reader.accept(mark)):
                self.close(mark)
                return True
        return False


def is_name(text: str) -> bool:
    """Return whether a text can be the name of a tool, known or not."""
    return _NAME.fullmatch(text) is not None
