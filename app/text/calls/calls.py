"""What the four machines share: text with calls in it, and the events of one call after another."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import Self

from app.text.calls.tool_schemas import ToolSchemas
from app.text.reading.answer_events import Arguments, CallBegin, CallEnd
from app.text.reading.markers import Marks, as_shown
from app.text.reading.reader import Reader, Reading

_NAME = re.compile(r'[^\s<>{}()\[\]"\']{1,256}')


@dataclass(frozen=True, slots=True)
class ListMarks:
    """The marks of a family whose calls come in a list: what opens it, and what closes it, if anything does.

    With `is_bare` an answer may also begin with a list or a call without a mark; its name must then be that of a tool.
    """

    opens: tuple[str, ...]
    closes: tuple[str, ...] = ()
    is_bare: bool = False

    @property
    def marks(self) -> tuple[str, ...]:
        """All marks."""
        return *self.opens, *self.closes

    def resolved(self, special: Collection[str]) -> Self:
        """Return the marks of a model with the special tokens `special`."""
        opens, closes = (tuple(as_shown(mark, special) for mark in marks) for marks in (self.opens, self.closes))
        return replace(self, opens=opens, closes=closes)


class Calls:
    """The calls of one answer; `closes` are the marks that may follow a call. One owner.

    A closing mark belongs to the call before it, once for each call; elsewhere it is text. A mark or a call that is cut
    off by the end of the answer is text only if no call came before.
    """

    def __init__(self, reader: Reader, closes: Iterable[str]) -> None:
        self._reader = reader
        self._closes = tuple(closes)
        self._due: list[str] = []  # closing marks that may still come

    def read(self, opens: Iterable[str], read_body: Callable[[str], Reading[None]], *, is_bare: bool) -> Reading[None]:
        """Read the answer to its end: text, and where it has an opening mark what `read_body` reads.

        With `is_bare` the answer may also begin with a body.
        """
        reader, marks = self._reader, Marks((*opens, *self._closes))
        if is_bare:
            reader.keep()
            yield from self._read_one(read_body, "")
        while True:
            if reader.num_calls and not reader.has_text:
                yield from reader.skip()
            cut_off = Marks((*opens, *self._due)) if reader.num_calls else None
            mark = yield from reader.pass_until(marks, reader.add_text, cut_off=cut_off)
            if mark in self._due:
                self.close(mark)
                reader.drop()
            elif mark and mark not in self._closes:
                yield from self._read_one(read_body, mark)
            elif not mark and reader.num_calls:
                reader.drop()  # blanks behind a call, and a mark that is cut off
            else:
                reader.release()
            if not mark:
                return

    def begin(self, name: str) -> None:
        """Begin a call: what was kept is part of it."""
        self._reader.drop()
        self._due = list(self._closes)
        self._reader.events.append(CallBegin(self._reader.num_calls, name))
        self._reader.num_calls += 1

    def add(self, text: str) -> None:
        """Add a piece of the call's arguments."""
        if text:
            self._reader.events.append(Arguments(self._reader.num_calls - 1, text))

    def close(self, mark: str) -> None:
        """Note that a closing mark of the call was read."""
        self._due.remove(mark)

    def end(self, *, is_whole: bool) -> None:
        """End the call, whose arguments are complete (`is_whole`) or break off; what follows is kept."""
        if is_whole:
            self._reader.events.append(CallEnd(self._reader.num_calls - 1))
        self._reader.keep()

    def _read_one(self, read_body: Callable[[str], Reading[None]], mark: str) -> Reading[None]:
        reader, num_before = self._reader, self._reader.num_calls
        reader.ran_out = False
        yield from read_body(mark)
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

    def _read_close(self) -> Reading[bool]:
        """Consume blanks and a closing mark that is due."""
        yield from self._reader.skip()
        for mark in self._due:
            if (yield from self._reader.accept(mark)):
                self.close(mark)
                return True
        return False


def is_name(text: str) -> bool:
    """Return whether a text can be the name of a tool, known or not."""
    return _NAME.fullmatch(text) is not None


class ListMachine(ABC):
    """Reads text with calls in lists; `form` is resolved."""

    def __init__(self, form: ListMarks, schemas: ToolSchemas) -> None:
        self._form = form
        self._schemas = schemas

    def read(self, reader: Reader) -> Reading[None]:
        """See `Machine`."""
        calls, form = Calls(reader, self._form.closes), self._form
        yield from calls.read(form.opens, lambda mark: self._read_body(reader, calls, not mark), is_bare=form.is_bare)

    @abstractmethod
    def _read_body(self, reader: Reader, calls: Calls, is_bare: bool) -> Reading[None]:
        """Read the calls behind an opening mark, or without one (`is_bare`)."""
