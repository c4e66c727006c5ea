"""OpenAI's JSON shapes of a choice: those of a chat completion, and those of a completion.

A format is one object for each response. Both have the same members:
- `chunk_object`, `body_object`: the `object` field of a stream's chunks and of a JSON body.
- `first_fields`: the fields of a choice in the first chunk of a stream; b"" if there is no such chunk.
- `before_text`, `after_text`: the JSON around the text of a choice in a chunk.
- `no_text`: the same fields in the chunk that ends a choice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import orjson

from app.contract.packed_logprobs import Logprobs, TokenLogprobs
from app.streaming.openai_shapes import TokenBytes, finite, logprobs_entries, token_name


class ChatFormat:
    """The shapes of `chat.completion.chunk` and `chat.completion`."""

    chunk_object = "chat.completion.chunk"
    body_object = "chat.completion"
    first_fields = b'"delta":{"role":"assistant","content":""}'
    before_text, after_text = b'"delta":{"content":', b"}"
    no_text = b'"delta":{}'

    def __init__(self, token_bytes: TokenBytes) -> None:
        self._token_bytes = token_bytes

    def text_fields(self, text: str) -> dict[str, object]:
        """Return the fields of a JSON body that contain the text of a choice."""
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def logprobs(self, choice: int, logprobs: Logprobs) -> dict[str, Any]:
        """Return the log-probabilities of the next tokens of a choice, for a chunk."""
        return {"content": logprobs_entries(logprobs, self._token_bytes), "refusal": None}

    def logprobs_pieces(self, choice: int, logprobs: Logprobs) -> Iterator[bytes]:
        """Yield the log-probabilities of all tokens of a choice as JSON, in pieces that take a millisecond each."""
        yield b'{"content":['
        for number, piece in enumerate(logprobs.pieces()):
            yield (b"," if number else b"") + _items(logprobs_entries(piece, self._token_bytes))
        yield b'],"refusal":null}'


class CompletionFormat:
    """The shapes of `text_completion`; counts each choice's characters for the logprobs' `text_offset`."""

    chunk_object = body_object = "text_completion"
    first_fields = b""
    before_text, after_text = b'"text":', b""
    no_text = b'"text":""'

    def __init__(self, token_bytes: TokenBytes) -> None:
        self._token_bytes = token_bytes
        self._num_chars: Counter[int] = Counter()  # by choice

    def text_fields(self, text: str) -> dict[str, object]:
        """Return the fields of a JSON body that contain the text of a choice."""
        return {"text": text}

    def logprobs(self, choice: int, logprobs: Logprobs) -> dict[str, Any]:
        """Return the log-probabilities of the next tokens of a choice, for a chunk."""
        return {name: [value_of(token) for token in logprobs] for name, value_of in self._columns(choice).items()}

    def logprobs_pieces(self, choice: int, logprobs: Logprobs) -> Iterator[bytes]:
        """Yield the log-probabilities of all tokens of a choice as JSON, in pieces that take a millisecond each."""
        for index, (name, value_of) in enumerate(self._columns(choice).items()):
            yield (b"," if index else b"{") + b'"%b":[' % name.encode()
            for number, piece in enumerate(logprobs.pieces()):
                yield (b"," if number else b"") + _items([value_of(token) for token in piece])
            yield b"]"
        yield b"}"

    def _columns(self, choice: int) -> dict[str, Callable[[TokenLogprobs], Any]]:
        """Return the names of the four lists, and the functions that return their values for a token."""
        return {
            "tokens": lambda token: self._name(token.token_id),
            "token_logprobs": lambda token: finite(token.logprob),
            "top_logprobs": self._best_by_name,
            "text_offset": lambda token: self._offset(choice, token),
        }

    def _name(self, token_id: int) -> str:
        return token_name(self._token_bytes(token_id))

    def _best_by_name(self, token: TokenLogprobs) -> dict[str, float]:
        """Names are not unique: the best token of a name counts, but the sampled token always does."""
        by_name: dict[str, float] = {}
        for token_id, logprob in zip(token.top_token_ids, token.top_logprobs, strict=True):
            by_name.setdefault(self._name(token_id), finite(logprob))
        by_name[self._name(token.token_id)] = finite(token.logprob)
        return by_name

    def _offset(self, choice: int, token: TokenLogprobs) -> int:
        """Return the offset of the next token of the choice in its text."""
        offset = self._num_chars[choice]
        self._num_chars[choice] += len(self._token_bytes(token.token_id).decode("utf-8", "replace"))
        return offset


ChoiceFormat = ChatFormat | CompletionFormat


def _items(values: Sequence[object]) -> bytes:
    """Return `values` as the inside of a JSON array."""
    return orjson.dumps(values)[1:-1]
