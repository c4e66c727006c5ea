"""A stream that tells its token counts in every chunk (`stream_options.continuous_usage_stats`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import orjson

from app.api.framing import Framing
from app.api.wire_format import WholeChoice, WireFormat
from app.contract.events import Finished, TokenDelta, Usage


class UsageChunks:
    """Implements `WireFormat` over another one whose chunks end with `"usage":null`.

    The counts are those of the chunk's choice so far, as vLLM has them; the last chunk, of no choice, has the sums.
    """

    def __init__(self, inner: WireFormat, num_prompt_tokens: int, framing: Framing) -> None:
        self._inner = inner
        self._num_prompt_tokens = num_prompt_tokens
        self._after = framing.after
        self._empty = b',"usage":null}' + framing.after

    def opening(self) -> bytes:
        """Return what the stream begins with."""
        return self._with_usage(self._inner.opening(), 0)

    def delta(self, delta: TokenDelta) -> bytes:
        """Return the chunk of new tokens, if there is one."""
        return self._with_usage(self._inner.delta(delta), delta.first - 1 + len(delta.token_ids))

    def finish(self, finished: Finished) -> bytes:
        """Return the chunk that ends a choice."""
        return self._with_usage(self._inner.finish(finished), finished.usage.completion_tokens)

    def usage(self, usage: Usage) -> bytes:
        """Return the chunk with the sums."""
        return self._inner.usage(usage)

    def whole(self, choices: Sequence[WholeChoice], usage: Usage) -> Iterator[bytes]:
        """Yield the body of an answer that is not streamed."""
        return self._inner.whole(choices, usage)

    def _with_usage(self, chunks: bytes, num_tokens: int) -> bytes:
        fields = {
            "prompt_tokens": self._num_prompt_tokens,
            "completion_tokens": num_tokens,
            "total_tokens": self._num_prompt_tokens + num_tokens,
        }
        # Inside a text the quotes would be escaped: what is found ends a chunk.
        return chunks.replace(self._empty, b',"usage":%b}' % orjson.dumps(fields) + self._after)
