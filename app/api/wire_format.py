"""The bytes of answers, as far as all routes have them in common: chunks of a stream, and one JSON body."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import quote

import orjson
from starlette.types import Message

from app.api.framing import Framing
from app.api.parse_request import ApiRequest
from app.contract.events import Finished, FinishReason, TokenDelta, Usage
from app.contract.packed_logprobs import Logprobs
from app.streaming.openai_shapes import usage_fields

MAX_IGNORED_NAMES = 32
MAX_NAME_LENGTH = 64


@dataclass(frozen=True, slots=True)
class JsonChoice:
    """All of one choice, for clients that do not stream."""

    text: str
    logprobs: Logprobs | None
    reason: FinishReason


class WireFormat(Protocol):
    """The JSON shapes of one route's answer; one object for each answer.

    Attributes:
        chunk_object, body_object: what the `object` field says in a stream and in one body.
        opening: the fields of a choice that a stream begins with, none: b"".
        before_text, after_text: what stands around the text (as JSON) in a chunk's choice.
        no_text: the same in the chunk that ends a choice.
    """

    chunk_object: str
    body_object: str
    opening: bytes
    before_text: bytes
    after_text: bytes
    no_text: bytes

    def choice_fields(self, text: str) -> dict[str, object]:
        """Return the fields that hold the text of a choice in one body."""

    def logprobs(self, choice: int, logprobs: Logprobs) -> dict[str, Any]:
        """Return the log-probabilities of the next tokens of a choice, for a chunk."""

    def logprobs_pieces(self, choice: int, logprobs: Logprobs) -> Iterator[bytes]:
        """Yield those of a whole choice as JSON, in pieces none of which takes long to make."""


class Chunks:
    """Makes the chunks of one streamed answer. What is the same in all of them is made once; a token costs one dump."""

    def __init__(self, request: ApiRequest, format: WireFormat, framing: Framing) -> None:
        self._request = request
        self._format = format
        self._framing = framing
        head = framing.before + dump_line(_head(request, format.chunk_object))[:-1] + b',"choices":[{"index":'
        self._befores = [head + b"%d," % choice for choice in range(request.request.params.n)]
        self._text_befores = [before + format.before_text for before in self._befores]
        self._after = b"}]" + (b',"usage":null}' if request.include_usage else b"}") + framing.after
        self._open_after = b',"logprobs":null,"finish_reason":null' + self._after
        self._text_after = format.after_text + self._open_after

    def opening(self) -> bytes:
        """Return what the stream begins with, for all its choices (possibly nothing)."""
        opening = self._format.opening
        return b"".join(before + opening + self._open_after for before in self._befores) if opening else b""

    def delta(self, delta: TokenDelta) -> bytes:
        """Return the chunk of new tokens; nothing if they released no text and no log-probabilities are due."""
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
        """Return the chunk with the token counts, if the client asked for it, else nothing."""
        if not self._request.include_usage:
            return b""
        fields = {"choices": [], "usage": usage_fields(usage)}
        return self._framing.wrap(dump_line(_head(self._request, self._format.chunk_object) | fields))


class UsageChunks(Chunks):
    """Chunks that end with token counts where others have `"usage":null` (`stream_options.continuous_usage_stats`).

    The counts are those of the chunk's choice so far, as vLLM has them; the last chunk, of no choice, has the sums.
    """

    def __init__(self, request: ApiRequest, format: WireFormat, framing: Framing) -> None:
        super().__init__(request, format, framing)
        self._num_prompt_tokens = len(request.request.prompt_token_ids)
        self._chunk_end = framing.after
        self._null_usage = b',"usage":null}' + framing.after

    def opening(self) -> bytes:
        """Return what the stream begins with."""
        return self._with_usage(super().opening(), 0)

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
        # Inside a text the quotes would be escaped: what is found ends a chunk.
        return chunks.replace(self._null_usage, b',"usage":%b}' % orjson.dumps(fields) + self._chunk_end)


def json_pieces(
    request: ApiRequest, format: WireFormat, choices: Sequence[JsonChoice], usage: Usage
) -> Iterator[bytes]:
    """Yield the body of an answer that is not streamed; the place of a choice is its index.

    It comes in pieces, some of them empty, none of which takes long to make: log-probabilities can be much.
    """
    yield orjson.dumps(_head(request, format.body_object))[:-1] + b',"choices":['
    for index, choice in enumerate(choices):
        fields = orjson.dumps({"index": index, **format.choice_fields(choice.text)})[:-1]
        yield (b"," if index else b"") + fields + b',"logprobs":'
        if choice.logprobs is None:
            yield b"null"
        else:
            yield from format.logprobs_pieces(index, choice.logprobs)
        yield b',"finish_reason":%b}' % orjson.dumps(choice.reason)
    yield b'],"usage":%b}' % orjson.dumps(usage_fields(usage))


def start_message(request: ApiRequest, headers: Mapping[str, str]) -> Message:
    """Return the ASGI message that begins an answer; ignored fields are named in a header, quoted and truncated."""
    ignored = [quote(name, safe="")[:MAX_NAME_LENGTH] for name in request.ignored[:MAX_IGNORED_NAMES]]
    fields = {**headers, **({"x-quire-ignored": ", ".join(ignored)} if ignored else {})}
    encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields.items()]
    return {"type": "http.response.start", "status": 200, "headers": encoded}


def dump_line(value: object) -> bytes:
    """Return `value` as JSON that every reader takes for one line.

    Some clients split streams where Python's `str.splitlines` does; JSON leaves three such characters as they are.
    """
    line = orjson.dumps(value)
    if line.isascii():
        return line
    return (
        line.replace(b"\xc2\x85", rb"\u0085").replace(b"\xe2\x80\xa8", rb"\u2028").replace(b"\xe2\x80\xa9", rb"\u2029")
    )


def dump_items(values: Sequence[object]) -> bytes:
    """Return `values` as the inside of a JSON array."""
    return orjson.dumps(values)[1:-1]


def _head(request: ApiRequest, kind: str) -> dict[str, object]:
    return {"id": request.request.id, "object": kind, "created": request.created, "model": request.model}
