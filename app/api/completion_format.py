"""The shapes of a completion: `text_completion` events, or one `text_completion`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from app.api.wire_format import dump_items
from app.contract.packed_logprobs import Logprobs, TokenLogprobs
from app.streaming.openai_shapes import TokenBytes, finite, token_name


class CompletionFormat:
    """Implements `WireFormat` for completions; counts each choice's characters for the logprobs' `text_offset`."""

    chunk_object = body_object = "text_completion"
    opening = b""
    before_text, after_text = b'"text":', b""
    no_text = b'"text":""'

    def __init__(self, token_bytes: TokenBytes) -> None:
        self._token_bytes = token_bytes
        self._num_chars: Counter[int] = Counter()  # by choice

    def choice_fields(self, text: str) -> dict[str, object]:
        """Return the fields that hold the text of a choice in one body."""
        return {"text": text}

    def logprobs(self, choice: int, logprobs: Logprobs) -> dict[str, Any]:
        """Return the log-probabilities of the next tokens of a choice, for a chunk."""
        return {name: [value_of(token) for token in logprobs] for name, value_of in self._columns(choice).items()}

    def logprobs_pieces(self, choice: int, logprobs: Logprobs) -> Iterator[bytes]:
        """Yield those of a whole choice as JSON, in pieces none of which takes long to make."""
        for index, (name, value_of) in enumerate(self._columns(choice).items()):
            yield (b"," if index else b"{") + b'"%b":[' % name.encode()
            for number, piece in enumerate(logprobs.pieces()):
                yield (b"," if number else b"") + dump_items([value_of(token) for token in piece])
            yield b"]"
        yield b"}"

    def _columns(self, choice: int) -> dict[str, Callable[[TokenLogprobs], Any]]:
        """The four lists: their names, and what each holds of a token."""
        return {
            "tokens": lambda token: self._name(token.token_id),
            "token_logprobs": lambda token: finite(token.logprob),
            "top_logprobs": self._best_by_name,
            "text_offset": lambda token: self._offset(choice, token),
        }

    def _name(self, token_id: int) -> str:
        return token_name(self._token_bytes(token_id))

    def _best_by_name(self, token: TokenLogprobs) -> dict[str, float]:
        """Names are not unique: of tokens that share one the best counts, but the sampled one is always there."""
        by_name: dict[str, float] = {}
        for token_id, logprob in zip(token.top_token_ids, token.top_logprobs, strict=True):
            by_name.setdefault(self._name(token_id), finite(logprob))
        by_name[self._name(token.token_id)] = finite(token.logprob)
        return by_name

    def _offset(self, choice: int, token: TokenLogprobs) -> int:
        """Return where the next token of the choice begins in its text."""
        offset = self._num_chars[choice]
        self._num_chars[choice] += len(self._token_bytes(token.token_id).decode("utf-8", "replace"))
        return offset
