"""What the grammar of an answer was made of: to say which part of a request is at fault when it is rejected."""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

from app.contract.grammar import Grammar, StructuredOutputs
from app.text.answer.answer_format import AnswerFormat
from app.text.answer.tool_choice import ToolUse
from app.text.grammar.grammar_sources import grammar_of

MAX_PARTS = 8
"""Grammars that one rejected request compiles at most, to say which of them is at fault."""


class Requested(NamedTuple):
    """What the answer must be, and the path of the client's field that says so."""

    outputs: StructuredOutputs
    path: str

    def beside(self, tools: ToolUse) -> Requested | None:
        """Return itself, or None for a `response_format` where a call is required.

        Clients of agents send `response_format` with every request, for the text that comes after the calls.
        """
        return None if tools.called and self.path.startswith("response_format") else self


class GrammarOrigin(NamedTuple):
    """What a grammar was made of: the client's field and its tools; with `answers` their calls are written."""

    requested: Requested | None
    tools: ToolUse
    answers: AnswerFormat

    @property
    def path(self) -> str:
        """The path of the field that the grammar comes from."""
        if self.requested is not None:
            return self.requested.path
        return "tools" if self.tools.definitions else "structured_outputs"

    def parts(self) -> list[tuple[str, Grammar]]:
        """Return the grammars of the field and of the first tools alone, with their paths: to find the one at fault.

        Any thread, but not the loop: it takes up to 0.1 s.
        """
        if not self.tools.definitions:
            return []
        parts = [] if self.requested is None else [(self.requested.path, grammar_of(self.requested.outputs))]
        return parts + list(islice(self.tools.parts(self.answers), MAX_PARTS - len(parts)))
