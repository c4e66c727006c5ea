"""What a request demands of its answers: that they call tools, or satisfy a field. It becomes one grammar."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

from app.contract.grammar import Grammar, StructuredOutputs
from app.contract.sampling_params import SamplingParams
from app.runtime.lazy_property import lazy_property
from app.text.answer.answer_format import AnswerFormat
from app.text.answer.answer_rules import AnswerRules, answer_rules
from app.text.answer.reasoning_start import ReasoningStart
from app.text.answer.tool_use import NO_TOOLS, ToolUse
from app.text.calls.tool_schemas import ToolSchemas
from app.text.grammar.grammar_sources import grammar_of

MAX_PARTS = 8
"""Grammars that one rejected request compiles at most, to say which of them is at fault."""

Naming = Callable[[str], AbstractContextManager[object]]
"""Returns a context in which errors about a grammar become those of the client's field, whose path is given."""


class Requested(NamedTuple):
    """The form that the answer must have, and the path of the client's field that says so.

    With `yields_to_calls` it is not wanted where a call is required: agents send such a field with every request, for
    the text that comes after the calls.
    """

    outputs: StructuredOutputs
    path: str
    yields_to_calls: bool = False

    def beside(self, tools: ToolUse) -> Requested | None:
        """Return itself, or None if a call is required instead."""
        return None if tools.called and self.yields_to_calls else self


class AnswerDemand:
    """The demand on the answers of one request, whose grammar is made once. One thread at a time.

    `requested` is what a field says, `tools` are those that the answers may or must call, `answers` says how they are
    written.
    """

    def __init__(
        self,
        answers: AnswerFormat,
        requested: Requested | None = None,
        tools: ToolUse = NO_TOOLS,
        naming: Naming = nullcontext,
    ) -> None:
        self._answers = answers
        self._requested = None if requested is None else requested.beside(tools)
        self._tools = tools
        self._naming = naming

    @property
    def path(self) -> str:
        """The path of the field that the grammar comes from."""
        if self._requested is not None:
            return self._requested.path
        return "tools" if self._tools.known else "structured_outputs"

    @lazy_property
    def schemas(self) -> ToolSchemas | None:
        """The tools, as the parser of an answer needs them; None if there are none."""
        return self._tools.schemas

    def rules(self, params: SamplingParams, start: ReasoningStart | None) -> AnswerRules:
        """Return the rules of an answer with these parameters, whose reasoning begins like `start`.

        Raises:
            InvalidValue, UnsupportedParameter: see `ToolUse.grammar` and `answer_rules`.
        """
        with self._naming(self.path):
            rules = answer_rules(self._grammar, params, start)
        if rules.grammar is None:
            return rules
        return rules._replace(grammar=replace(rules.grammar, param=self.path))

    def parts(self) -> list[tuple[str, Grammar]]:
        """Return the grammars of the field and of the first tools alone, with their paths: to find the one at fault.

        Any thread, but not the loop: it takes up to 0.1 s.
        """
        if not self._tools.known:
            return []
        parts = [] if self._requested is None else [(self._requested.path, grammar_of(self._requested.outputs))]
        return parts + list(islice(self._tools.parts(self._answers), MAX_PARTS - len(parts)))

    @lazy_property
    def _grammar(self) -> Grammar | None:
        return self._tools.grammar(self._answers, None if self._requested is None else self._requested.outputs)
