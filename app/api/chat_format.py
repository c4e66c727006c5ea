"""The shapes of a chat answer: `chat.completion.chunk` events, or one `chat.completion`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from app.api.wire_format import dump_items
from app.contract.packed_logprobs import Logprobs
from app.streaming.openai_shapes import TokenBytes, logprobs_entries


class ChatFormat:
    """Implements `WireFormat` for chat."""

    chunk_object = "chat.completion.chunk"
    body_object = "chat.completion"
    opening = b'"delta":{"role":"assistant","content":""}'
    before_text, after_text = b'"delta":{"content":', b"}"
    no_text = b'"delta":{}'

    def __init__(self, token_bytes: TokenBytes) -> None:
        self._token_bytes = token_bytes

    def choice_fields(self, text: str) -> dict[str, object]:
        """Return the fields that hold the text of a choice in one body."""
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def logprobs(self, choice: int, logprobs: Logprobs) -> dict[str, Any]:
        """Return the log-probabilities of the next tokens of a choice, for a chunk."""
        return {"content": logprobs_entries(logprobs, self._token_bytes), "refusal": None}

    def logprobs_pieces(self, choice: int, logprobs: Logprobs) -> Iterator[bytes]:
        """Yield those of a whole choice as JSON, in pieces none of which takes long to make."""
        yield b'{"content":['
        for number, piece in enumerate(logprobs.pieces()):
            yield (b"," if number else b"") + dump_items(logprobs_entries(piece, self._token_bytes))
        yield b'],"refusal":null}'
