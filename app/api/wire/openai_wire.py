"""OpenAI's chunks and JSON bodies: the wire of chats and of completions.

Every chunk is a struct (`answers.Chunk`), of which all but the choice is the same for a whole stream, and nearly all
choices have a piece of text and nothing else. The JSON around them is made once, from such structs too: a token costs
one dump of its text, any other change of a choice one dump of the choice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic

from msgspec import UNSET
from msgspec.structs import replace

from app.api.http.error_shape import error_body
from app.api.wire.answers import ChatChoice, Chunk, ChunkChoice, CompletionChoice, UsageSoFar
from app.api.wire.api_request import ApiRequest
from app.api.wire.body_details import BodyDetails
from app.api.wire.choice_format import ChoiceFormat, Part
from app.api.wire.framing import Framing
from app.api.wire.json_line import dump_line, dump_pieces, later, one_line, text_line, written
from app.api.wire.shown_prompt import prompt_logprobs_pieces
from app.api.wire.wire import JsonBody
from app.contract.errors import ErrorInfo
from app.contract.events import ChoiceEnd, Finished, PromptScored, Timings, TokenDelta, Usage
from app.contract.packed_logprobs import Logprobs
from app.streaming.openai_shapes import TimingsAnswer, UsageAnswer

PIECE_TOKENS = 2**13  # token ids in one piece of JSON


class OpenAiWire(Generic[Part]):
    """Implements `Wire` for the answer to one request."""

    def __init__(self, request: ApiRequest, format: ChoiceFormat[Part], framing: Framing) -> None:
        self.media_type = framing.media_type
        self.heartbeat = framing.heartbeat
        self._request = request
        self._format = format
        self._framing = framing
        self._head: dict[str, Any] = {"id": request.id, "created": request.created, "model": request.model}
        usage = None if request.include_usage else UNSET
        self._no_choice = Chunk(object=format.chunk_object, choices=[], usage=usage, **self._head)
        self._is_text_alone = not request.has_token_ids and not request.has_usage_in_chunks
        self._is_parsed = request.answer is not None
        self._details = BodyDetails(request)
        before, opening, after = text_line(self._no_choice).partition(b'"choices":[')
        self._before, self._after = framing.before + before + opening, after + framing.after
        if self._is_text_alone:
            around = [text_line(format.choice(choice, "")).partition(b'""') for choice in range(request.num_choices)]
            self._before_texts = [self._before + before for before, _, _ in around]
            self._after_text = around[0][2] + self._after

    def first(self, scored: PromptScored | None = None) -> Iterator[bytes]:
        """Yield the first chunk of each choice that has one; those of scored prompts come with the scores."""
        request = self._request
        if scored is not None:
            for choice in range(scored.choice, scored.choice + request.request.params.n):
                yield from self._first_of(choice, scored.logprobs)
        elif request.request.params.prompt_logprobs is None:
            for choice in range(request.num_choices):
                yield from self._first_of(choice, None)

    def _first_of(self, choice: int, scores: Logprobs | None) -> Iterator[bytes]:
        """Yield the first chunk of a choice; that of a prompt's first choice has the fields of the prompt."""
        request = self._request
        first = self._format.first(choice)
        shown = self._shown_prompt(choice, scores) if request.is_first_of_prompt(choice) else {}
        if first is None and not shown:
            return
        first = first or self._format.choice(choice, "")
        if scores is not None and request.echo_of(choice) is not None and request.request.params.logprobs is not None:
            first.logprobs = later(self._format.logprobs_pieces(choice, scores))
        elif not shown:
            yield self._dump(first)
            return
        chunk = self._chunk(first)
        for name, value in shown.items():
            setattr(first if self._format.has_prompt_in_choice else chunk, name, value)
        yield self._framing.before
        yield from map(one_line, dump_pieces(chunk))
        yield self._framing.after

    def delta(self, delta: TokenDelta) -> bytes:
        """Return the chunk of new tokens; nothing if they complete no text, and nothing else of them is requested."""
        # Nearly all tokens of answers that nothing parses end here, so the format is not asked for their text.
        part = self._format.part(delta) if self._is_parsed else delta.text
        if self._is_text_alone and delta.logprobs is None and isinstance(part, str):
            return self._before_texts[delta.choice] + text_line(part) + self._after_text if part else b""
        token_ids = delta.token_ids if self._request.has_token_ids else ()
        if not part and delta.logprobs is None and not token_ids:
            return b""
        choice = self._format.choice(delta.choice, part)
        if delta.logprobs is not None:
            choice.logprobs = written(self._format.logprobs(delta.choice, delta.logprobs))
        choice.token_ids = token_ids or UNSET
        return self._dump(choice, delta.first - 1 + len(delta.token_ids))

    def skip(self, delta: TokenDelta) -> None:
        """Take new tokens that the reader of a stream has already."""
        self._format.skip(delta)

    def finish(self, finished: Finished) -> bytes:
        """Return the chunk that ends a choice, and before it one with what was held back, if anything."""
        num_tokens = finished.usage.completion_tokens
        end = self._dump(self._format.end(finished.choice, finished.end), num_tokens)
        rest = self._format.rest(finished.choice)
        return self._dump(self._format.choice(finished.choice, rest), num_tokens) + end if rest else end

    def last(self, usage: Usage, span: Timings) -> bytes:
        """Return the chunk of no choice, with token counts and times if they are requested, and the stream's end."""
        request = self._request
        if not request.include_usage and not request.has_timings:
            return self._framing.end
        chunk = replace(self._no_choice)
        if request.include_usage:
            chunk.usage = UsageAnswer.of(usage, self._format.reasoning_tokens)
        if request.has_timings:
            chunk.timings = TimingsAnswer.of(usage, span)
        return self._framing.wrap(text_line(chunk)) + self._framing.end

    def error(self, error: ErrorInfo) -> bytes:
        """Return the error, after which a stream has no other end."""
        return self._framing.wrap(one_line(error_body(error)))

    def keep(self, event: TokenDelta | PromptScored) -> None:
        """Keep tokens, or the scores of a prompt, for the JSON body."""
        if isinstance(event, TokenDelta):
            self._format.keep(event)
        self._details.add(event)

    def whole(self, ends: Mapping[int, ChoiceEnd], usage: Usage, span: Timings) -> JsonBody:
        """Return the JSON body. Of log-probabilities the packed rows count, a seventh of their JSON."""
        format = self._format
        choices = [self._whole_choice(choice, end) for choice, end in sorted(ends.items())]
        shown = {} if format.has_prompt_in_choice else self._shown_prompt(0, self._details.scores(0))
        timings = TimingsAnswer.of(usage, span) if self._request.has_timings else UNSET
        counts = UsageAnswer.of(usage, format.reasoning_tokens)
        body = format.body(choices, usage=counts, timings=timings, **shown, **self._head)
        return JsonBody(dump_pieces(body), self._details.num_bytes)

    def _whole_choice(self, choice: int, end: ChoiceEnd) -> ChatChoice | CompletionChoice:
        details, has_prompt = self._details, self._format.has_prompt_in_choice
        fields = self._shown_prompt(choice, details.scores(choice)) if has_prompt else {}
        if self._request.has_token_ids:
            fields["token_ids"] = later(_list_pieces(details.token_ids(choice)))
        has_logprobs = self._request.request.params.logprobs is not None
        logprobs = later(self._all_logprobs(choice)) if has_logprobs else None
        return self._format.whole(choice, end, logprobs=logprobs, **fields)

    def _all_logprobs(self, choice: int) -> Iterator[bytes]:
        yield from self._format.logprobs_pieces(choice, self._details.logprobs(choice))  # joined when it is their turn

    def _chunk(self, choice: ChunkChoice, num_tokens: int = 0) -> Chunk:
        """Return a chunk; `num_tokens` is how many its choice has so far.

        The counts in it are those of its choice, as in vLLM; the last chunk, of no choice, has the sums.
        """
        chunk = replace(self._no_choice, choices=[choice])
        if self._request.has_usage_in_chunks:
            num_prompt_tokens = len(self._request.prompt_of(choice.index))
            chunk.usage = UsageSoFar(num_prompt_tokens, num_tokens, num_prompt_tokens + num_tokens)
        return chunk

    def _dump(self, choice: ChunkChoice, num_tokens: int = 0) -> bytes:
        """Return the chunk of a choice without what is requested of its prompt."""
        if self._request.has_usage_in_chunks:
            return self._framing.wrap(text_line(self._chunk(choice, num_tokens)))
        return self._before + text_line(choice) + self._after

    def _shown_prompt(self, choice: int, scores: Logprobs | None) -> dict[str, Any]:
        """Return the fields with what is requested of the prompt of a choice."""
        shown: dict[str, Any] = {}
        if self._request.has_token_ids:
            shown["prompt_token_ids"] = later(_list_pieces(self._request.prompt_of(choice)))
        if scores is not None and self._request.shown.has_logprobs:
            shown["prompt_logprobs"] = later(prompt_logprobs_pieces(scores, self._request.token_bytes))
        return shown


def _list_pieces(token_ids: Sequence[int]) -> Iterator[bytes]:
    """Yield a list of token ids as JSON, in pieces."""
    yield b"["
    for start in range(0, len(token_ids), PIECE_TOKENS):
        yield (b"," if start else b"") + dump_line([*token_ids[start : start + PIECE_TOKENS]])[1:-1]
    yield b"]"
