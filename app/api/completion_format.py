"""The bytes of a completion: `text_completion` events, or one `text_completion`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import orjson

from app.api.framing import Framing
from app.api.parse_request import ApiRequest
from app.api.wire_format import WholeChoice, dump_items, dump_line
from app.contract.events import Finished, TokenDelta, Usage
from app.contract.packed_logprobs import Logprobs, TokenLogprobs
from app.streaming.openai_shapes import finite, token_name, token_text, usage_fields


class CompletionFormat:
    """Implements `WireFormat` for completions; counts each choice's characters for the logprobs' `text_offset`."""

    def __init__(self, prepared: ApiRequest, framing: Framing) -> None:
        self._prepared = prepared
        self._framing = framing
        self._num_chars = [0] * prepared.request.params.n
        head = dump_line(self._head())[:-1]
        tail = b',"usage":null}' if prepared.include_usage else b"}"
        self._choices = framing.before + head + b',"choices":[{"index":'
        self._after = b"}]" + tail + framing.after
        self._text_befores = [self._before(choice) for choice in range(prepared.request.params.n)]
        self._text_after = b',"logprobs":null,"finish_reason":null' + self._after

    def opening(self) -> bytes:
        """Return nothing: completions have no role."""
        return b""

    def delta(self, delta: TokenDelta) -> bytes:
        """Return the chunk of new tokens; nothing if they released no text and no log-probabilities are due."""
        if delta.logprobs is not None:
            lists = dump_line(self._logprobs(delta.choice, delta.logprobs))
            end = b',"logprobs":' + lists + b',"finish_reason":null' + self._after
            return self._text_befores[delta.choice] + dump_line(delta.text) + end
        return self._text_befores[delta.choice] + dump_line(delta.text) + self._text_after if delta.text else b""

    def finish(self, finished: Finished) -> bytes:
        """Return the chunk that ends a choice."""
        reason = orjson.dumps(finished.reason)
        return self._text_befores[finished.choice] + b'"","logprobs":null,"finish_reason":' + reason + self._after

    def usage(self, usage: Usage) -> bytes:
        """Return the chunk that tells the token counts, if the client asked for it, else nothing."""
        if not self._prepared.include_usage:
            return b""
        fields = self._head() | {"choices": [], "usage": usage_fields(usage)}
        return self._framing.wrap(dump_line(fields))

    def whole(self, choices: Sequence[WholeChoice], usage: Usage) -> Iterator[bytes]:
        """Yield the body of an answer that is not streamed; the place of a choice is its index."""
        yield orjson.dumps(self._head())[:-1] + b',"choices":['
        for index, choice in enumerate(choices):
            fields = orjson.dumps({"index": index, "text": choice.text})[:-1]
            yield (b"," if index else b"") + fields + b',"logprobs":'
            yield from self._whole_logprobs(index, choice.logprobs)
            yield b',"finish_reason":%b}' % orjson.dumps(choice.reason)
        yield b'],"usage":%b}' % orjson.dumps(usage_fields(usage))

    def _whole_logprobs(self, choice: int, logprobs: Logprobs | None) -> Iterator[bytes]:
        if logprobs is None:
            yield b"null"
            return
        for index, (name, value_of) in enumerate(self._columns(choice).items()):
            yield (b"," if index else b"{") + b'"%b":[' % name.encode()
            for number, piece in enumerate(logprobs.pieces()):
                yield (b"," if number else b"") + dump_items([value_of(token) for token in piece])
            yield b"]"
        yield b"}"

    def _before(self, choice: int) -> bytes:
        return self._choices + b'%d,"text":' % choice

    def _head(self) -> dict[str, object]:
        prepared = self._prepared
        return {
            "id": prepared.request.id,
            "object": "text_completion",
            "created": prepared.created,
            "model": prepared.model,
        }

    def _logprobs(self, choice: int, logprobs: Logprobs) -> dict[str, list[Any]]:
        return {name: [value_of(token) for token in logprobs] for name, value_of in self._columns(choice).items()}

    def _columns(self, choice: int) -> dict[str, Callable[[TokenLogprobs], Any]]:
        """What is told of each token, list by list."""
        token_bytes = self._prepared.token_bytes
        return {
            "tokens": lambda token: token_name(token_bytes(token.token_id)),
            "token_logprobs": lambda token: finite(token.logprob),
            "top_logprobs": self._best_by_name,
            "text_offset": lambda token: self._offset(choice, token),
        }

    def _best_by_name(self, token: TokenLogprobs) -> dict[str, float]:
        """Names are not unique: of tokens that share one the best is told, but always the one that was drawn."""
        token_bytes = self._prepared.token_bytes
        by_name: dict[str, float] = {}
        for token_id, logprob in zip(token.top_token_ids, token.top_logprobs, strict=True):
            by_name.setdefault(token_name(token_bytes(token_id)), finite(logprob))
        by_name[token_name(token_bytes(token.token_id))] = finite(token.logprob)
        return by_name

    def _offset(self, choice: int, token: TokenLogprobs) -> int:
        """Return where the next token of the choice begins in its text."""
        offset = self._num_chars[choice]
        self._num_chars[choice] += len(token_text(self._prepared.token_bytes(token.token_id)))
        return offset
