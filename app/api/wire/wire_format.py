"""The bytes of a response: its head, the chunks of a stream (SSE or NDJSON), or one JSON body."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

import orjson
from starlette.datastructures import Headers
from starlette.types import Message

from app.api.wire.api_request import ApiRequest
from app.api.wire.choice_format import ChoiceFormat
from app.api.wire.json_line import dump_line
from app.api.wire.shown_prompt import prompt_logprobs_pieces
from app.contract.events import ChoiceEnd, Finished, PromptScored, Timings, TokenDelta, Usage
from app.contract.packed_logprobs import Logprobs
from app.streaming import sse_format
from app.streaming.openai_shapes import timing_fields, usage_fields

MAX_IGNORED_NAMES = 32
MAX_NAME_LENGTH = 64
PIECE_TOKENS = 2**13  # token ids in one piece of JSON


@dataclass(frozen=True, slots=True)
class JsonChoice:
    """A complete choice, for clients that do not stream; `fields` are those with its text or message.

    `scores` are the log-probabilities of its prompt, if they are shown; all choices of a prompt have the same.
    """

    fields: dict[str, object]
    logprobs: Logprobs | None
    end: ChoiceEnd
    token_ids: array[int] | None = None
    scores: Logprobs | None = None

    @property
    def num_bytes(self) -> int:
        """The memory of its own log-probabilities and token ids."""
        num_bytes = 0 if self.logprobs is None else len(self.logprobs.rows)
        return num_bytes if self.token_ids is None else num_bytes + len(self.token_ids) * self.token_ids.itemsize


@dataclass(frozen=True, slots=True)
class Framing:
    """The bytes around and between the payloads of one kind of stream."""

    media_type: str
    before: bytes
    after: bytes
    heartbeat: bytes
    end: bytes

    def wrap(self, payload: bytes) -> bytes:
        """Return one payload (JSON without line breaks) with its framing."""
        return self.before + payload + self.after


SSE = Framing("text/event-stream; charset=utf-8", b"data: ", b"\n\n", sse_format.HEARTBEAT, sse_format.DONE)
NDJSON = Framing("application/x-ndjson", b"", b"\n", b"\n", b"")


def choose_framing(headers: Headers) -> Framing:
    """Return the framing that a client accepts: NDJSON if `Accept` names it, else SSE."""
    accepted = [part.partition(";")[0].strip().lower() for part in headers.get("accept", "").split(",")]
    return NDJSON if NDJSON.media_type in accepted else SSE


class Chunks:
    """Makes the chunks of one stream. The bytes that all chunks have are made once; a token costs one dump."""

    def __init__(self, request: ApiRequest, format: ChoiceFormat, framing: Framing) -> None:
        self._request = request
        self._format = format
        self._framing = framing
        self._answer = request.new_parsers()
        has_tools = request.answer is not None and request.answer.schemas is not None
        self._first_fields = format.first_fields_before_calls if has_tools else format.first_fields
        head = framing.before + dump_line(_head(request, format.chunk_object))[:-1] + b',"choices":[{"index":'
        self._befores = [head + b"%d," % choice for choice in range(request.num_choices)]
        self._text_befores = [before + format.before_text for before in self._befores]
        self._rest = (b',"usage":null}' if request.include_usage else b"}") + framing.after
        self._after = b"}]" + self._rest
        self._open_after = b',"logprobs":null,"finish_reason":null' + self._after
        self._text_after = format.after_text + self._open_after

    def first(self) -> bytes:
        """Return the first chunk of each choice, if it has one; nothing if they come with the scores of the prompt."""
        request = self._request
        if request.request.params.prompt_logprobs is not None:
            return b""
        return b"".join(piece for choice in range(request.num_choices) for piece in self._first_of(choice, None))

    def scored(self, scored: PromptScored) -> Iterator[bytes]:
        """Yield the first chunk of each choice of a scored prompt, in pieces that take a millisecond each."""
        for choice in range(scored.choice, scored.choice + self._request.request.params.n):
            yield from self._first_of(choice, scored.logprobs)

    def _first_of(self, choice: int, scores: Logprobs | None) -> Iterator[bytes]:
        """Yield the first chunk of a choice; that of a prompt's first choice has the fields of the prompt."""
        format, request = self._format, self._request
        echo, fields = request.echo_of(choice), self._first_fields
        if echo is not None:
            fields = format.before_text + dump_line(echo.text) + format.after_text
        prompt = b"".join(self._prompt_ids(choice))
        has_scores = scores is not None and request.shown.has_logprobs and request.is_first_of_prompt(choice)
        if not (fields or prompt or has_scores):
            return
        yield self._befores[choice] + (fields or format.no_text) + b',"logprobs":'
        if scores is None or echo is None or request.request.params.logprobs is None:
            yield b"null"
        else:
            yield from format.logprobs_pieces(choice, scores)
        yield b',"finish_reason":null' + (b"" if format.has_prompt_in_choice else b"}]") + prompt
        if scores is not None and has_scores:
            yield b',"prompt_logprobs":'
            yield from prompt_logprobs_pieces(scores, request.token_bytes)
        yield self._after if format.has_prompt_in_choice else self._rest

    def _prompt_ids(self, choice: int) -> Iterator[bytes]:
        """Yield the field with the ids of the prompt, in the chunk of its first choice, if they are requested."""
        if self._request.has_token_ids and self._request.is_first_of_prompt(choice):
            yield from _token_ids("prompt_token_ids", self._request.prompt_of(choice))

    def delta(self, delta: TokenDelta) -> bytes:
        """Return the chunk of new tokens; nothing if they complete no text, and nothing else of them is requested."""
        has_token_ids = self._request.has_token_ids and delta.token_ids
        if self._answer is not None:
            fields = self._answer.feed_delta(delta)
            if not fields and delta.logprobs is None and not has_token_ids:
                return b""
            text = b'"delta":' + dump_line(fields or {"content": ""})
        elif delta.logprobs is None and not has_token_ids:
            return self._text_befores[delta.choice] + dump_line(delta.text) + self._text_after if delta.text else b""
        else:
            text = self._format.before_text + dump_line(delta.text) + self._format.after_text
        values = None if delta.logprobs is None else self._format.logprobs(delta.choice, delta.logprobs)
        end = b',"logprobs":' + dump_line(values)
        if has_token_ids:
            end += b',"token_ids":' + orjson.dumps(delta.token_ids)
        return self._befores[delta.choice] + text + end + b',"finish_reason":null' + self._after

    def finish(self, finished: Finished) -> bytes:
        """Return the chunk that ends a choice, and before it one with what its parsers held back, if anything."""
        before, rest, ended = self._befores[finished.choice], b"", finished.end
        if self._answer is not None:
            if fields := self._answer.finish_delta(finished.choice):
                rest = before + b'"delta":' + dump_line(fields) + self._open_after
            ended = self._answer.end_of(finished.choice, ended)
        end = b',"logprobs":null' + _end_fields(ended)
        return rest + before + self._format.no_text + end + self._after

    def last(self, usage: Usage, span: Timings) -> bytes:
        """Return the chunk of no choice, with token counts and times; nothing if the request includes neither."""
        fields: dict[str, object] = {"choices": []}
        if self._request.include_usage:
            num_reasoning = None if self._answer is None else self._answer.reasoning_tokens
            fields["usage"] = usage_fields(usage, num_reasoning)
        if self._request.has_timings:
            fields["timings"] = timing_fields(usage, span)
        if len(fields) == 1:
            return b""
        return self._framing.wrap(dump_line(_head(self._request, self._format.chunk_object) | fields))


class UsageChunks(Chunks):
    """Chunks with token counts instead of `"usage":null` (`stream_options.continuous_usage_stats`).

    The counts are those of the chunk's choice so far, as in vLLM; the last chunk, of no choice, has the sums.
    """

    def __init__(self, request: ApiRequest, format: ChoiceFormat, framing: Framing) -> None:
        super().__init__(request, format, framing)
        self._chunk_end = framing.after
        self._null_usage = b',"usage":null}' + framing.after

    def _first_of(self, choice: int, scores: Logprobs | None) -> Iterator[bytes]:
        for piece in super()._first_of(choice, scores):
            yield self._with_usage(piece, choice, 0)

    def delta(self, delta: TokenDelta) -> bytes:
        """Return the chunk of new tokens, if there is one."""
        return self._with_usage(super().delta(delta), delta.choice, delta.first - 1 + len(delta.token_ids))

    def finish(self, finished: Finished) -> bytes:
        """Return the chunk that ends a choice."""
        return self._with_usage(super().finish(finished), finished.choice, finished.usage.completion_tokens)

    def _with_usage(self, chunk: bytes, choice: int, num_tokens: int) -> bytes:
        num_prompt_tokens = len(self._request.prompt_of(choice))
        fields = {
            "prompt_tokens": num_prompt_tokens,
            "completion_tokens": num_tokens,
            "total_tokens": num_prompt_tokens + num_tokens,
        }
        # Quotes inside a text are escaped, so the match is the end of the chunk.
        return chunk.replace(self._null_usage, b',"usage":%b}' % orjson.dumps(fields) + self._chunk_end)


def json_pieces(
    request: ApiRequest,
    format: ChoiceFormat,
    choices: Sequence[JsonChoice],
    usage: Usage,
    span: Timings,
    reasoning_tokens: int | None = None,
) -> Iterator[bytes]:
    """Yield the JSON body of a response; the position of a choice is its index.

    The pieces, some of them empty, take a millisecond each: the log-probabilities can be tens of megabytes.
    """
    yield orjson.dumps(_head(request, format.body_object))[:-1] + b',"choices":['
    for index, choice in enumerate(choices):
        fields = orjson.dumps({"index": index, **choice.fields})[:-1]
        yield (b"," if index else b"") + fields + b',"logprobs":'
        if choice.logprobs is None:
            yield b"null"
        else:
            yield from format.logprobs_pieces(index, choice.logprobs)
        if choice.scores is not None and format.has_prompt_in_choice:
            yield b',"prompt_logprobs":'
            yield from prompt_logprobs_pieces(choice.scores, request.token_bytes)
        if request.has_token_ids and format.has_prompt_in_choice:
            yield from _token_ids("prompt_token_ids", request.prompt_of(index))
        if choice.token_ids is not None:
            yield from _token_ids("token_ids", choice.token_ids)
        yield _end_fields(choice.end) + b"}"
    yield b'],"usage":' + orjson.dumps(usage_fields(usage, reasoning_tokens))
    if request.has_token_ids and not format.has_prompt_in_choice:
        yield from _token_ids("prompt_token_ids", request.request.prompt_token_ids)
    if choices and choices[0].scores is not None and not format.has_prompt_in_choice:
        yield b',"prompt_logprobs":'
        yield from prompt_logprobs_pieces(choices[0].scores, request.token_bytes)
    if request.has_timings:
        yield b',"timings":' + orjson.dumps(timing_fields(usage, span))
    yield b"}"


def _end_fields(end: ChoiceEnd) -> bytes:
    """Return the fields that say why a choice has ended."""
    fields = b',"finish_reason":' + orjson.dumps(end.reason)
    return fields if end.stop_reason is None else fields + b',"stop_reason":' + orjson.dumps(end.stop_reason)


def _token_ids(name: str, token_ids: Sequence[int]) -> Iterator[bytes]:
    """Yield a field with token ids, in pieces."""
    yield b',"%b":[' % name.encode()
    for start in range(0, len(token_ids), PIECE_TOKENS):
        yield (b"," if start else b"") + orjson.dumps(list(token_ids[start : start + PIECE_TOKENS]))[1:-1]
    yield b"]"


def start_message(request: ApiRequest, headers: Mapping[str, str]) -> Message:
    """Return the ASGI message that begins a response; a header names the ignored fields."""
    fields = {**headers, **ignored_header(request.ignored)}
    encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields.items()]
    return {"type": "http.response.start", "status": 200, "headers": encoded}


def ignored_header(names: Sequence[str]) -> dict[str, str]:
    """Return the header that names the ignored fields of a body, quoted and truncated; none if there are none."""
    ignored = [quote(name, safe="")[:MAX_NAME_LENGTH] for name in names[:MAX_IGNORED_NAMES]]
    return {"x-quire-ignored": ", ".join(ignored)} if ignored else {}


def _head(request: ApiRequest, kind: str) -> dict[str, object]:
    return {"id": request.id, "object": kind, "created": request.created, "model": request.model}
