"""The text of one answer as it comes in, for machines that read it like a complete one.

A machine is a generator: it reads with the methods below, and is suspended while the text that it needs has not come.
So it is written as if the text were complete, and finds the same however the text is cut.

Rules of this file:
- A method that fails has consumed nothing; where it fails does not depend on how the text was cut.
- Text that may become a call is kept (`keep`) until the call has begun (`drop`) or cannot begin any more (`release`).
  What comes behind a call is kept until it is clear whether it belongs to the call; else it is read again (`rewind`).
  At most `MAX_KEPT` characters are kept.
- At the end of an answer that has calls, what could still become a mark or a call is no text (`ran_out`). Without a
  call it is: the answer may speak of such marks, and would be empty.
- Each character is looked at a bounded number of times.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import TypeAlias, TypeVar

from app.text.reading.answer_events import Event, Text
from app.text.reading.json_span import JsonSpan
from app.text.reading.marks import Marks

MAX_KEPT = 1024
MAX_BLANKS = 64
BLANKS = " \t\r\n"

T = TypeVar("T")
Reading: TypeAlias = Generator[None, None, T]
"""A part of a machine: use `yield from`."""


class Reader:
    """The text that has not been read yet, and the events that were found. One owner.

    Attributes:
        events: what was found since the caller took it last.
        has_text: whether any text was found.
        num_calls: the number of calls that have begun.
        ran_out: whether more text was needed than there is.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.has_text = False
        self.num_calls = 0
        self.ran_out = False
        self._text = ""
        self._position = 0
        self._kept: int | None = None  # where the kept text begins
        self._is_in_long_run = False  # the blanks before the position are too many to be kept
        self._has_ended = False

    def feed(self, text: str) -> None:
        """Add the next piece of the answer."""
        begin = self._position if self._kept is None else self._kept
        self._text = self._text[begin:] + text
        self._position -= begin
        self._kept = None if self._kept is None else 0

    def end(self) -> None:
        """Note that the answer is complete."""
        self._has_ended = True

    # --- Text that may become a call -----------------------------------------------------------------------------

    def keep(self) -> None:
        """Keep what is read from here on."""
        self._kept = self._position

    def drop(self) -> None:
        """Keep nothing: what was read is part of a call."""
        self._kept = None

    def release(self) -> None:
        """Turn what was kept into text."""
        if self._kept is not None:
            self.add_text(self._text[self._kept : self._position])
            self._kept = None

    def add_text(self, text: str) -> None:
        """Add a piece of text to the events."""
        if text:
            self.has_text = True
            self.events.append(Text(text))

    def rewind(self) -> None:
        """Read again what was kept."""
        if self._kept is not None:
            self._position, self._kept = self._kept, None

    def drop_unfinished(self) -> None:
        """Drop what was not read if the answer has ended: a part of a call that breaks off."""
        if self._has_ended:
            self._position = len(self._text)

    def drop_rest(self) -> None:
        """Drop what is kept and what was not read."""
        self._position = len(self._text)
        self._kept = None

    def _is_too_long(self, end: int) -> bool:
        return self._kept is not None and end - self._kept > MAX_KEPT

    def _limit(self) -> int:
        """Return where text that is kept ends at the latest: behind it nothing is searched."""
        return len(self._text) if self._kept is None else min(len(self._text), self._kept + MAX_KEPT)

    # --- Reading -------------------------------------------------------------------------------------------------

    def more(self) -> Reading[bool]:
        """Wait for more text; False if there is none."""
        size = len(self._text) - self._position
        while len(self._text) - self._position == size:
            if self._has_ended:
                self.ran_out = True
                return False
            yield
        return True

    def peek(self) -> Reading[str]:
        """Return the next character, "" at the end, without consuming it."""
        if self._position == len(self._text) and not (yield from self.more()):
            return ""
        return self._text[self._position]

    def skip(self, chars: str = BLANKS) -> Reading[str]:
        """Consume a run of `chars`, as far as text may be kept; return the character behind it."""
        while True:
            char = yield from self.peek()
            if not char or char not in chars or self._is_too_long(self._position + 1):
                return char
            self._position += 1

    def accept(self, mark: str) -> Reading[bool]:
        """Consume `mark` if the text continues with it."""
        while not self._text.startswith(mark, self._position):
            rest = self._text[self._position : self._position + len(mark)]
            if not mark.startswith(rest) or not (yield from self.more()):
                return False
        self._position += len(mark)
        return True

    def read_run(self, chars: re.Pattern[str], limit: int) -> Reading[str]:
        """Consume and return a run of `chars`, a pattern for one or more of them; at most `limit` characters."""
        size = 0
        while True:
            match = chars.match(self._text, self._position + size, self._position + limit)
            size = size if match is None else match.end() - self._position
            is_over = size == limit or self._position + size < len(self._text)
            if is_over or not (yield from self.more()):
                break
        run = self._text[self._position : self._position + size]
        self._position += size
        return run

    def pass_until(
        self, marks: Marks, add: Callable[[str], None], *, keeps_blanks: bool = True, cut_off: Marks | None = None
    ) -> Reading[str]:
        """Give `add` the text before the next mark, and consume the mark, which is kept; return it, or "" at the end.

        With `keeps_blanks` the blanks before the mark or the end are kept, too, unless there are more than
        `MAX_BLANKS`. So is a beginning of one of `cut_off`, which are among `marks`, at the end of the answer.
        """
        while True:
            match = marks.find(self._text, self._position)
            end = len(self._text) if match is None else match.start()
            held = cut_off if self._has_ended else marks
            if match is None and held is not None:
                end -= held.num_held(self._text, self._position)
            begin = self._blanks_before(end) if keeps_blanks else end
            if begin > self._position:
                add(self._text[self._position : begin])
                self._position = begin
            if match is not None or self._has_ended:
                self.keep()
                self._position = len(self._text) if match is None else match.end()
                self._is_in_long_run = False
                return "" if match is None else match[0]
            yield from self.more()

    def read_until(self, marks: Marks) -> Reading[tuple[str, str] | None]:
        """Consume and return the text before the next mark, and the mark; None if it is too far away."""
        while (match := marks.find(self._text, self._position, self._limit())) is None:
            if self._is_too_long(len(self._text)) or not (yield from self.more()):
                return None
        text = self._text[self._position : match.start()]
        self._position = match.end()
        return text, match[0]

    def read_string(self) -> Reading[str | None]:
        """Consume a JSON string and return its value; None if there is none, or its end is too far away."""
        raw = None
        if (yield from self.peek()) == '"':
            raw = yield from self.read_value()
        if raw is None:
            return None
        with suppress(ValueError):
            return str(json.loads(raw, strict=False))
        return raw[1:-1]

    def read_value(self) -> Reading[str | None]:
        """Consume and return a JSON value; None if there is none, or its end is too far away."""
        span, size = JsonSpan(), 0
        while True:
            size = span.scan(self._text, self._position + size, self._limit()) - self._position
            if span.is_broken or (not span.is_complete and self._is_too_long(len(self._text))):
                return None
            if span.is_complete or not (yield from self.more()):
                break
        if not (span.is_complete or span.is_word):
            return None
        value = self._text[self._position : self._position + size]
        self._position += size
        return value

    def pass_value(self, add: Callable[[str], None]) -> Reading[bool]:
        """Give `add` a JSON value in pieces, and consume it; return whether it is complete."""
        span = JsonSpan()
        while True:
            end = span.scan(self._text, self._position)
            if end > self._position:
                add(self._text[self._position : end])
                self._position = end
            if span.is_complete or span.is_broken:
                return span.is_complete
            if not (yield from self.more()):
                return span.is_word

    def _blanks_before(self, end: int) -> int:
        """Return where the run of blanks before `end` begins; `end` if the run is too long to be kept."""
        begin = end
        while begin > self._position and end - begin <= MAX_BLANKS and self._text[begin - 1] in BLANKS:
            begin -= 1
        if end - begin > MAX_BLANKS or (self._is_in_long_run and begin == self._position):
            self._is_in_long_run = True
            return end
        self._is_in_long_run = False
        return begin
