"""The bytes of a chat answer: `chat.completion.chunk` events, or one `chat.completion`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import orjson

from app.api.framing import Framing
from app.api.parse_request import ApiRequest
from app.api.wire_format import WholeChoice, dump_items, dump_line
from app.contract.events import Finished, TokenDelta, Usage
from app.contract.packed_logprobs import Logprobs
from app.streaming.openai_shapes import logprobs_entries, usage_fields


class ChatFormat:
    """Implements `WireFormat` for chat. All that is the same in every chunk is made once; a token costs one dump."""

    def __init__(self, prepared: ApiRequest, framing: Framing) -> None:
        self._prepared = prepared
        self._framing = framing
        head = dump_line(self._head("chat.completion.chunk"))[:-1]
        tail = b',"usage":null}' if prepared.include_usage else b"}"
        self._choices = framing.before + head + b',"choices":[{"index":'
        self._after = b"}]" + tail + framing.after
        self._befores = [self._before(choice) for choice in range(prepared.request.params.n)]
        self._text_befores = [before + b'{"content":' for before in self._befores]
        self._text_after = b'},"logprobs":null,"finish_reason":null' + self._after

    def opening(self) -> bytes:
        """Return the chunks that tell the role, one for each choice."""
        end = b'{"role":"assistant","content":""},"logprobs":null,"finish_reason":null' + self._after
        return b"".join(before + end for before in self._befores)

    def delta(self, delta: TokenDelta) -> bytes:
        """Return the chunk of new tokens; nothing if they released no text and no log-probabilities are due."""
        if delta.logprobs is not None:
            content = logprobs_entries(delta.logprobs, self._prepared.token_bytes)
            entries = dump_line({"content": content, "refusal": None})
            end = b'},"logprobs":' + entries + b',"finish_reason":null' + self._after
            return self._text_befores[delta.choice] + dump_line(delta.text) + end
        return self._text_befores[delta.choice] + dump_line(delta.text) + self._text_after if delta.text else b""

    def finish(self, finished: Finished) -> bytes:
        """Return the chunk that ends a choice."""
        reason = orjson.dumps(finished.reason)
        return self._befores[finished.choice] + b'{},"logprobs":null,"finish_reason":' + reason + self._after

    def usage(self, usage: Usage) -> bytes:
        """Return the chunk that tells the token counts, if the client asked for it, else nothing."""
        if not self._prepared.include_usage:
            return b""
        fields = self._head("chat.completion.chunk") | {"choices": [], "usage": usage_fields(usage)}
        return self._framing.wrap(dump_line(fields))

    def whole(self, choices: Sequence[WholeChoice], usage: Usage) -> Iterator[bytes]:
        """Yield the body of an answer that is not streamed; the place of a choice is its index."""
        yield orjson.dumps(self._head("chat.completion"))[:-1] + b',"choices":['
        for index, choice in enumerate(choices):
            message = {"role": "assistant", "content": choice.text, "refusal": None}
            fields = orjson.dumps({"index": index, "message": message})[:-1]
            yield (b"," if index else b"") + fields + b',"logprobs":'
            yield from self._whole_logprobs(choice.logprobs)
            yield b',"finish_reason":%b}' % orjson.dumps(choice.reason)
        yield b'],"usage":%b}' % orjson.dumps(usage_fields(usage))

    def _whole_logprobs(self, logprobs: Logprobs | None) -> Iterator[bytes]:
        if logprobs is None:
            yield b"null"
            return
        yield b'{"content":['
        for number, piece in enumerate(logprobs.pieces()):
            yield (b"," if number else b"") + dump_items(logprobs_entries(piece, self._prepared.token_bytes))
        yield b'],"refusal":null}'

    def _before(self, choice: int) -> bytes:
        return self._choices + b'%d,"delta":' % choice

    def _head(self, kind: str) -> dict[str, object]:
        prepared = self._prepared
        return {"id": prepared.request.id, "object": kind, "created": prepared.created, "model": prepared.model}
