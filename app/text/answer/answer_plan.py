"""How the answers to one prompt are read."""

from __future__ import annotations

from dataclasses import dataclass

from app.text.answer.answer_format import AnswerFormat, AnswerParser
from app.text.answer.reasoning_start import ReasoningStart
from app.text.calls.tool_schemas import ToolSchemas


@dataclass(frozen=True, slots=True)
class AnswerPlan:
    """How the answers to one prompt are read. Any thread.

    Attributes:
        format: the format of the model's answers.
        schemas: those of the tools that they may call; None if there are none.
        start: how their reasoning begins; None if they have none.
    """

    format: AnswerFormat
    schemas: ToolSchemas | None = None
    start: ReasoningStart | None = None

    @classmethod
    def of(cls, answers: AnswerFormat, schemas: ToolSchemas | None, start: ReasoningStart | None) -> AnswerPlan | None:
        """Return the plan for answers of a model with this format; None where they are text alone."""
        if start is None and (schemas is None or answers.calls is None):
            return None
        return cls(answers, schemas, start)

    @property
    def shown_token_ids(self) -> frozenset[int]:
        """The special tokens that the text of an answer must contain, because its parser looks for them."""
        return self.format.shown_token_ids(self.schemas is not None)

    def new_parser(self) -> AnswerParser | None:
        """Return a parser for one answer, or None if nothing is parsed."""
        return self.format.new_parser(self.schemas, is_inside=self.start is not None and self.start.is_inside)
