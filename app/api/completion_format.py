"""The bytes of a completion: `text_completion` events, or one `text_completion`."""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from app.api.answer_format import WholeChoice, dump_line
from app.api.framing import Framing
from app.api.prepare import Prepared
from app.messages import Finished, Logprob, TokenDelta, TokenLogprobs, Usage
from app.streaming.openai_shapes import finite, token_name, token_text, usage_fields


class CompletionFormat:
    """Implements `AnswerFormat` for completions; counts each choice's characters for the logprobs' `text_offset`."""

    def __init__(self, prepared: Prepared, framing: Framing) -> None:
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

    def whole(self, choices: Sequence[WholeChoice], usage: Usage) -> bytes:
        """Return the body of an answer that is not streamed; the place of a choice is its index."""
        fields = [
            {
                "index": index,
                "text": choice.text,
                "logprobs": None if choice.logprobs is None else self._logprobs(index, choice.logprobs),
                "finish_reason": choice.reason,
            }
            for index, choice in enumerate(choices)
        ]
        return orjson.dumps(self._head() | {"choices": fields, "usage": usage_fields(usage)})

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

    def _logprobs(self, choice: int, logprobs: Sequence[TokenLogprobs]) -> dict[str, object]:
        texts = [token_text(token.chosen) for token in logprobs]
        offsets = []
        for text in texts:
            offsets.append(self._num_chars[choice])
            self._num_chars[choice] += len(text)
        return {
            "tokens": [token_name(token.chosen) for token in logprobs],
            "token_logprobs": [finite(token.chosen) for token in logprobs],
            "top_logprobs": [_best_by_name(token.top) for token in logprobs],
            "text_offset": offsets,
        }


def _best_by_name(top: Sequence[Logprob]) -> dict[str, float]:
    """Return log-probabilities by the token's name; of several special tokens without text the best one stays."""
    by_name: dict[str, float] = {}
    for other in top:
        by_name.setdefault(token_name(other), finite(other))
    return by_name
