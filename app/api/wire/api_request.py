"""A request that was read, with what its response needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from app.api.wire.parsed_answer import ParsedAnswer
from app.api.wire.shown_prompt import NO_PROMPT, Echo, ShownPrompt
from app.contract.requests import EngineRequest
from app.streaming.flow.slow_reader import SlowReader
from app.streaming.openai_shapes import TokenBytes
from app.text.answer.answer_demand import AnswerDemand
from app.text.answer.answer_plan import AnswerPlan
from app.text.grammar.grammar_entries import Lease


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """A checked and tokenized request, and the values that its response needs.

    Attributes:
        request: the request of the first prompt.
        model: the served name of the model.
        created: Unix seconds, as the response says them.
        stream: whether the response is a stream.
        include_usage: whether a stream ends with the usage.
        ignored: the unknown fields of the body.
        token_bytes: returns the bytes of a token.
        slow_reader: what becomes of a stream whose reader is slow.
        has_usage_in_chunks: whether each chunk of a stream has the usage so far.
        has_token_ids: whether the response has the ids of prompt and output.
        has_timings: whether the response has its times.
        others: the requests of further prompts.
        answer: how the answers are parsed; None if they are text alone.
        reasoning_fields: the names of the field with the reasoning of an answer, none if it is not sent.
        demand: what the grammar of the answers is made of.
        lease: keeps that grammar compiled until the session has ended; `parse_answer` adds it.
        shown: what the response has of its prompts.
        asked: what the wire of another API needs of the body.
        goes_on_from: the id of the kept answer that this one goes on from, if it does.
    """

    request: EngineRequest
    model: str
    created: int
    stream: bool
    include_usage: bool
    ignored: tuple[str, ...]
    token_bytes: TokenBytes
    slow_reader: SlowReader = SlowReader.PAUSE
    has_usage_in_chunks: bool = False
    has_token_ids: bool = False
    has_timings: bool = False
    others: tuple[EngineRequest, ...] = ()
    answer: AnswerPlan | None = None
    reasoning_fields: tuple[str, ...] = ("reasoning_content",)
    demand: AnswerDemand | None = None
    lease: Lease | None = None
    shown: ShownPrompt = NO_PROMPT
    asked: object = None
    goes_on_from: str | None = None

    def new_parsers(self) -> ParsedAnswer | None:
        """Return parsers for the answers, for one response; None if nothing is parsed."""
        if self.answer is None:
            return None
        has_reasoning = bool(self.reasoning_fields)
        return ParsedAnswer(self.answer, self.request.params.n, self.token_bytes, has_reasoning=has_reasoning)

    def release(self) -> None:
        """Release the lease, if there is one. Idempotent."""
        if self.lease is not None:
            self.lease.release()

    @contextmanager
    def released_on_error(self) -> Iterator[None]:
        """Release the lease if its response cannot be made, and so no session ever does."""
        try:
            yield
        except BaseException:
            self.release()
            raise

    @property
    def requests(self) -> tuple[EngineRequest, ...]:
        """The request of each prompt."""
        return (self.request, *self.others)

    @property
    def id(self) -> str:
        """The id of the response."""
        return self.request.id.removesuffix("-0") if self.others else self.request.id

    @property
    def num_choices(self) -> int:
        """The number of choices of the response: `n` for each prompt."""
        return self.request.params.n * len(self.requests)

    def prompt_of(self, choice: int) -> tuple[int, ...]:
        """Return the token ids of the prompt of a choice of the response."""
        return self.requests[choice // self.request.params.n].prompt_token_ids

    def echo_of(self, choice: int) -> Echo | None:
        """Return the prompt in front of a choice of the response, if it is shown there."""
        return self.shown.echoes[choice // self.request.params.n] if self.shown.echoes else None

    def first_of_prompt(self, choice: int) -> int:
        """Return the first choice of the prompt of a choice of the response."""
        return choice - choice % self.request.params.n

    def is_first_of_prompt(self, choice: int) -> bool:
        """Return whether a choice of the response is the first one of its prompt."""
        return choice == self.first_of_prompt(choice)
