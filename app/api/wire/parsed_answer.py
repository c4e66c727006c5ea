"""The answers of a chat request, parsed into text, reasoning and calls, between its session and its format.

Transcripts of the engine hold raw text: what is parsed here is a function of that text alone, so it is the same however
the text was cut, streamed or whole, and on every transport.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from app.contract.events import ChoiceEnd, TokenDelta
from app.streaming.openai_shapes import TokenBytes
from app.text.answer.answer_plan import AnswerPlan
from app.text.answer.parsed import CallPiece, MergedEvents, Parsed, call_id, client_reason
from app.text.reading.answer_events import Event, Reasoning, Text


class ParsedAnswer:
    """The answers to one request, with or without their reasoning. One owner."""

    def __init__(
        self,
        plan: AnswerPlan,
        num_choices: int,
        token_bytes: TokenBytes,
        *,
        has_reasoning: bool = True,
    ) -> None:
        self._has_reasoning = has_reasoning
        self._parsers = [plan.new_parser() for _ in range(num_choices)]
        self._merged = [MergedEvents() for _ in range(num_choices)]
        self._counts = [ReasoningCount(plan, token_bytes) for _ in range(num_choices)]

    def feed(self, delta: TokenDelta) -> Parsed:
        """Take the next part of a choice; return what it completes."""
        self._counts[delta.choice].add(delta.token_ids)
        parser = self._parsers[delta.choice]
        return self._parsed([Text(delta.text)] if parser is None else parser.feed(delta.text))

    def finish(self, choice: int) -> Parsed:
        """Take the end of a choice; return the rest."""
        parser = self._parsers[choice]
        return self._parsed([] if parser is None else parser.finish())

    def keep(self, delta: TokenDelta) -> None:
        """Take the next part of a choice of which only the `whole` is needed."""
        self._merged[delta.choice].add(self.feed(delta).events)

    def end_of(self, choice: int, end: ChoiceEnd) -> ChoiceEnd:
        """Return why a choice has ended, for clients."""
        return end._replace(reason=client_reason(end.reason, self._parsers[choice]))

    @property
    def reasoning_tokens(self) -> int | None:
        """The tokens of all choices that belong to reasoning, its marks included; None if they are not counted."""
        counts = [count.num_tokens for count in self._counts if count.num_tokens is not None]
        return sum(counts) if counts else None

    def whole(self, choice: int) -> Parsed:
        """Take the end of a choice whose parts were kept; return all of it."""
        self._merged[choice].add(self.finish(choice).events)
        return self._merged[choice].take()

    def _parsed(self, events: Iterable[Event]) -> Parsed:
        if not self._has_reasoning:
            events = (event for event in events if not isinstance(event, Reasoning))
        return Parsed(tuple(events))


class ReasoningCount:
    """Counts the tokens of one choice's reasoning by the tokens of its marks. One owner.

    As for the parser, only blanks may come before the opening mark.

    Attributes:
        num_tokens: the count; None where the marks are not single tokens.
    """

    def __init__(self, plan: AnswerPlan, token_bytes: TokenBytes) -> None:
        self._marks = None if plan.start is None else plan.start.marks
        self.num_tokens = None if self._marks is None else 0
        self._is_inside = self._marks is not None and self._marks.is_inside
        self._token_bytes = token_bytes
        self._is_over = False

    def add(self, token_ids: Sequence[int]) -> None:
        """Count the next tokens."""
        if self._is_over or self._marks is None or self.num_tokens is None:
            return
        for token_id in token_ids:
            self._is_inside |= token_id == self._marks.open_id
            self._is_over = (
                token_id == self._marks.close_id if self._is_inside else bool(self._token_bytes(token_id).strip())
            )
            self.num_tokens += self._is_inside
            if self._is_over:
                return


def tool_pieces(pieces: Sequence[CallPiece], request_id: str, choice: int) -> list[dict[str, object]]:
    """Return the field `tool` of quire.v1: a list of beginnings of calls and of pieces of their arguments, in order."""
    found: list[dict[str, object]] = []
    for piece in pieces:
        if piece.is_first:
            found.append({"k": piece.call, "id": call_id(request_id, choice, piece.call), "name": piece.name})
        if piece.arguments:
            found.append({"k": piece.call, "a": piece.arguments})
    return found
