"""The bytes of a response: its head, the chunks of a stream (SSE or NDJSON), or one JSON body."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

import orjson
from starlette.datastructures import Headers
from starlette.types import Message

from app.api.choice_format import ChoiceFormat
from app.api.parse_request import ApiRequest
from app.contract.events import Finished, FinishReason, TokenDelta, Usage
from app.contract.packed_logprobs import Logprobs
from app.streaming import sse_format
from app.streaming.openai_shapes import usage_fields

MAX_IGNORED_NAMES = 32
MAX_NAME_LENGTH = 64


@dataclass(frozen=True, slots=True)
class JsonChoice:
    """A complete choice, for clients that do not stream."""

    text: str
    logprobs: Logprobs | None
    reason: FinishReason


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
        head = framing.before + dump_line(_head(request, format.chunk_object))[:-1] + b',"choices":[{"index":'
        self._befores = [head + b"%d," % choice for choice in range(request.request.params.n)]
        self._text_befores = [before + format.before_text for before in self._befores]
        self._after = b"}]" + (b',"usage":null}' if request.include_usage else b"}") + framing.after
        self._open_after = b',"logprobs":null,"finish_reason":null' + self._after
        self._text_after = format.after_text + self._open_after

    def first(self) -> bytes:
        """Return the first chunk of each choice; nothing for a format without such chunks."""
        fields = self._format.first_fields
        return b"".join(before + fields + self._open_after for before in self._befores) if fields else b""

    def delta(self, delta: TokenDelta) -> bytes:
        """Return the chunk of new tokens; nothing if they complete no text and have no log-probabilities."""
        if delta.logprobs is None:
            return self._text_befores[delta.choice] + dump_line(delta.text) + self._text_after if delta.text else b""
        logprobs = dump_line(self._format.logprobs(delta.choice, delta.logprobs))
        end = self._format.after_text + b',"logprobs":' + logprobs + b',"finish_reason":null' + self._after
        return self._text_befores[delta.choice] + dump_line(delta.text) + end

    def finish(self, finished: Finished) -> bytes:
        """Return the chunk that ends a choice."""
        reason = b',"logprobs":null,"finish_reason":' + orjson.dumps(finished.reason)
        return self._befores[finished.choice] + self._format.no_text + reason + self._after

    def usage(self, usage: Usage) -> bytes:
        """Return the chunk with the token counts; nothing if the request does not include it."""
        if not self._request.include_usage:
            return b""
        fields = {"choices": [], "usage": usage_fields(usage)}
        return self._framing.wrap(dump_line(_head(self._request, self._format.chunk_object) | fields))


class UsageChunks(Chunks):
    """Chunks with token counts instead of `"usage":null` (`stream_options.continuous_usage_stats`).

    The counts are those of the chunk's choice so far, as in vLLM; the last chunk, of no choice, has the sums.
    """

    def __init__(self, request: ApiRequest, format: ChoiceFormat, framing: Framing) -> None:
        super().__init__(request, format, framing)
        self._num_prompt_tokens = len(request.request.prompt_token_ids)
        self._chunk_end = framing.after
        self._null_usage = b',"usage":null}' + framing.after

    def first(self) -> bytes:
        """Return the first chunk of each choice."""
        return self._with_usage(super().first(), 0)

    def delta(self, delta: TokenDelta) -> bytes:
        """Return the chunk of new tokens, if there is one."""
        return self._with_usage(super().delta(delta), delta.first - 1 + len(delta.token_ids))

    def finish(self, finished: Finished) -> bytes:
        """Return the chunk that ends a choice."""
        return self._with_usage(super().finish(finished), finished.usage.completion_tokens)

    def _with_usage(self, chunks: bytes, num_tokens: int) -> bytes:
        fields = {
            "prompt_tokens": self._num_prompt_tokens,
            "completion_tokens": num_tokens,
            "total_tokens": self._num_prompt_tokens + num_tokens,
        }
        # Quotes inside a text are escaped, so each match is the end of a chunk.
        return chunks.replace(self._null_usage, b',"usage":%b}' % orjson.dumps(fields) + self._chunk_end)


def json_pieces(
    request: ApiRequest, format: ChoiceFormat, choices: Sequence[JsonChoice], usage: Usage
) -> Iterator[bytes]:
    """Yield the JSON body of a response; the position of a choice is its index.

    The pieces, some of them empty, take a millisecond each: the log-probabilities can be tens of megabytes.
    """
    yield orjson.dumps(_head(request, format.body_object))[:-1] + b',"choices":['
    for index, choice in enumerate(choices):
        fields = orjson.dumps({"index": index, **format.text_fields(choice.text)})[:-1]
        yield (b"," if index else b"") + fields + b',"logprobs":'
        if choice.logprobs is None:
            yield b"null"
        else:
            yield from format.logprobs_pieces(index, choice.logprobs)
        yield b',"finish_reason":%b}' % orjson.dumps(choice.reason)
    yield b'],"usage":%b}' % orjson.dumps(usage_fields(usage))


def start_message(request: ApiRequest, headers: Mapping[str, str]) -> Message:
    """Return the ASGI message that begins a response; a header names the ignored fields, quoted and truncated."""
    ignored = [quote(name, safe="")[:MAX_NAME_LENGTH] for name in request.ignored[:MAX_IGNORED_NAMES]]
    fields = {**headers, **({"x-quire-ignored": ", ".join(ignored)} if ignored else {})}
    encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields.items()]
    return {"type": "http.response.start", "status": 200, "headers": encoded}


def dump_line(value: object) -> bytes:
    """Return `value` as JSON that is one line for every client.

    Some clients split streams like Python's `str.splitlines`, which also splits at three characters that JSON keeps.
    """
    line = orjson.dumps(value)
    if line.isascii():
        return line
    return (
        line.replace(b"\xc2\x85", rb"\u0085").replace(b"\xe2\x80\xa8", rb"\u2028").replace(b"\xe2\x80\xa9", rb"\u2029")
    )


def _head(request: ApiRequest, kind: str) -> dict[str, object]:
    return {"id": request.request.id, "object": kind, "created": request.created, "model": request.model}
