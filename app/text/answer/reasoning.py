"""Reasoning at the beginning of an answer, such as `<think> ... </think>`.

A block begins with the answer, or was begun by the prompt. Blanks next to its marks belong to nobody. A block without a
closing mark is all of the answer. A mark later in the answer is text.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import partial

from app.text.reading.answer_events import Reasoning
from app.text.reading.marks import Marks, as_shown
from app.text.reading.parser import Machine
from app.text.reading.reader import BLANKS, Reader, Reading

_NO_MARKS = Marks(())


@dataclass(frozen=True, slots=True)
class ReasoningStyle:
    """The marks around the reasoning of a family of models."""

    name: str
    open: str
    close: str

    @property
    def marks(self) -> tuple[str, str]:
        """Both marks."""
        return self.open, self.close

    def resolved(self, special: Collection[str]) -> ReasoningStyle:
        """Return the style for a model with the special tokens `special`."""
        return replace(self, open=as_shown(self.open, special), close=as_shown(self.close, special))

    def is_inside(self, prompt_end: str) -> bool:
        """Return whether a prompt with this end has begun the answer's reasoning."""
        return prompt_end.rstrip(BLANKS).endswith(self.open.rstrip(BLANKS))

    def begins(self, text: str) -> bool:
        """Return whether the text of an answer begins with reasoning."""
        return text.lstrip(BLANKS).startswith(self.open.rstrip(BLANKS))

    def machine(self, *, is_inside: bool) -> Machine:
        """Return the machine that separates the reasoning of an answer from the text behind it; the marks are resolved.

        With `is_inside` the prompt has begun the reasoning.
        """
        return partial(self._read, is_inside)

    def _read(self, is_inside: bool, reader: Reader) -> Reading[None]:
        reader.keep()
        yield from reader.skip()
        if is_inside or (yield from reader.accept(self.open)):
            reader.drop()
            yield from self._read_block(reader)
        else:
            reader.release()
        yield from reader.pass_until(_NO_MARKS, reader.add_text)
        reader.release()

    def _read_block(self, reader: Reader) -> Reading[None]:
        yield from reader.skip()
        add = partial(_add, reader)
        mark = yield from reader.pass_until(Marks([self.close]), add)
        reader.drop()
        if mark:
            yield from reader.skip("\r\n")


def _add(reader: Reader, text: str) -> None:
    reader.events.append(Reasoning(text))


STYLES = {
    style.name: style
    for style in (
        ReasoningStyle("think", "<think>", "</think>"),
        ReasoningStyle("mistral", "[THINK]", "[/THINK]"),
        ReasoningStyle("seed", "<seed:think>", "</seed:think>"),
        ReasoningStyle("gemma", "<|channel>thought\n", "<channel|>"),
    )
}
