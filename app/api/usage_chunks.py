"""A stream that has token counts in every chunk (`stream_options.continuous_usage_stats`)."""

from __future__ import annotations

import orjson

from app.api.framing import Framing
from app.api.parse_request import ApiRequest
from app.api.wire_format import Chunks, WireFormat
from app.contract.events import Finished, TokenDelta


class UsageChunks(Chunks):
    """Chunks that end with usage where others have `"usage":null`.

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
