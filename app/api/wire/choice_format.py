"""OpenAI's JSON shapes of a choice: those of a chat completion, and those of a completion.

A format is one object for each response. Both have the same members:
- `chunk_object`, `body_object`: the `object` field of a stream's chunks and of a JSON body.
- `first_fields`: the fields of a choice in the first chunk of a stream; b"" if there is no such chunk.
- `first_fields_before_calls`: the same where the answer may be calls alone, which have no content.
- `before_text`, `after_text`: the JSON around the text of a choice in a chunk.
- `no_text`: the same fields in the chunk that ends a choice.
- `has_prompt_in_choice`: whether the ids of the prompt, if requested, are a field of a choice; else of the response.
"""

from __future__ import annotations

import codecs
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from app.api.wire.json_line import dump_line
from app.api.wire.shown_prompt import Echo
from app.contract.packed_logprobs import Logprobs, TokenLogprobs
from app.streaming.openai_shapes import TokenBytes, finite, logprobs_entries, token_name


class ChatFormat:
    """The shapes of `chat.completion.chunk` and `chat.completion`."""

    chunk_object = "chat.completion.chunk"
    body_object = "chat.completion"
    first_fields = b'"delta":{"role":"assistant","content":""}'
    first_fields_before_calls = b'"delta":{"role":"assistant","content":null}'
    before_text, after_text = b'"delta":{"content":', b"}"
    no_text = b'"delta":{}'
    has_prompt_in_choice = False

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
    """The shapes of `text_completion`; counts each choice's characters for the logprobs' `text_offset`.

    `echoes` are the prompts in front of choices whose tokens have log-probabilities, by choice. The first of these are
    then those of the prompt, from its second token on. `begun` are the bytes of the characters that other prompts leave
    incomplete, by choice: answers begin with these characters.
    """

    chunk_object = body_object = "text_completion"
    first_fields = first_fields_before_calls = b""
    before_text, after_text = b'"text":', b""
    no_text = b'"text":""'
    has_prompt_in_choice = True

    def __init__(
        self,
        token_bytes: TokenBytes,
        echoes: Mapping[int, Echo] | None = None,
        begun: Mapping[int, bytes] | None = None,
    ) -> None:
        self._token_bytes = token_bytes
        self._echoes = dict(echoes or {})
        self._offsets: defaultdict[int, _Offsets] = defaultdict(_Offsets)  # by choice
        for choice, echo in self._echoes.items():
            self._offsets[choice] = _Offsets(echo.offset)
        for choice, raw in (begun or {}).items():
            self._offsets[choice].take(raw)

    def text_fields(self, text: str) -> dict[str, object]:
        """Return the fields of a JSON body that contain the text of a choice."""
        return {"text": text}

    def logprobs(self, choice: int, logprobs: Logprobs) -> dict[str, Any]:
        """Return the log-probabilities of the next tokens of a choice, for a chunk."""
        return {name: [value_of(token) for token in logprobs] for name, value_of in self._columns(choice).items()}

    def logprobs_pieces(self, choice: int, logprobs: Logprobs) -> Iterator[bytes]:
        """Yield the log-probabilities of all tokens of a choice as JSON, in pieces that take a millisecond each."""
        echo = self._echoes.pop(choice, None)
        for index, (name, value_of) in enumerate(self._columns(choice).items()):
            yield (b"," if index else b"{") + b'"%b":[' % name.encode()
            first = [] if echo is None else [[self._first_value(name, choice, echo.first_token_id)]]
            lists = ([value_of(token) for token in piece] for piece in logprobs.pieces())
            for number, values in enumerate(chain(first, lists)):
                yield (b"," if number else b"") + _items(values)
            yield b"]"
        yield b"}"

    def _first_value(self, name: str, choice: int, token_id: int) -> str | int | None:
        """Return the value of the first token of an echoed prompt in one of the four lists."""
        if name == "tokens":
            return self._name(token_id)
        return self._offset(choice, token_id) if name == "text_offset" else None

    def _columns(self, choice: int) -> dict[str, Callable[[TokenLogprobs], Any]]:
        """Return the names of the four lists, and the functions that return their values for a token."""
        return {
            "tokens": lambda token: self._name(token.token_id),
            "token_logprobs": lambda token: finite(token.logprob),
            "top_logprobs": self._best_by_name,
            "text_offset": lambda token: self._offset(choice, token.token_id),
        }

    def _name(self, token_id: int) -> str:
        return token_name(self._token_bytes(token_id))

    def _best_by_name(self, token: TokenLogprobs) -> dict[str, float]:
        """Return the best token of each name, which several may have; the sampled token always counts."""
        by_name: dict[str, float] = {}
        for token_id, logprob in zip(token.top_token_ids, token.top_logprobs, strict=True):
            by_name.setdefault(self._name(token_id), finite(logprob))
        by_name[self._name(token.token_id)] = finite(token.logprob)
        return by_name

    def _offset(self, choice: int, token_id: int) -> int:
        """Return the offset of the next token of the choice in its text."""
        return self._offsets[choice].take(self._token_bytes(token_id))


class _Offsets:
    """Where the tokens of a choice begin in its text: a character of several tokens begins with all of them."""

    def __init__(self, first: int = 0) -> None:
        self._next = first
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def take(self, token: bytes) -> int:
        """Return the offset of the next token; 0 for those before the text."""
        offset = self._next
        self._next += len(self._decoder.decode(token))
        return max(0, offset)


ChoiceFormat = ChatFormat | CompletionFormat


def _items(values: Sequence[object]) -> bytes:
    """Return `values` as the inside of a JSON array, in one line."""
    return dump_line(values)[1:-1]
