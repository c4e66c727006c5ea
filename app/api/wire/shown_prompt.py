"""What a response shows of its prompts: `echo` and `prompt_logprobs`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from app.api.wire.json_line import dump_line
from app.contract.packed_logprobs import Logprobs, TokenLogprobs
from app.streaming.openai_shapes import TokenBytes, finite
from app.text.tokens.detokenizer import incomplete_end


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt in front of each of its choices: its text and its first token, which has no log-probability.

    The text has no character that the prompt leaves incomplete: it is the beginning of the answer.
    `offset` is where the first token begins in the text. It is below 0 if the tokens' texts are longer than the text,
    because the server has put tokens before those of the text.
    """

    text: str
    first_token_id: int
    offset: int = 0

    @classmethod
    def of(cls, text: str, token_ids: Sequence[int], token_bytes: TokenBytes) -> Echo:
        """Return the echo of a prompt of one token or more. Takes a millisecond for 4,000 tokens."""
        raw = b"".join(map(token_bytes, token_ids))
        if end := incomplete_end(raw):
            raw, text = raw.removesuffix(end), text.removesuffix("\ufffd")
        return cls(text, token_ids[0], len(text) - len(raw.decode("utf-8", "replace")))


@dataclass(frozen=True, slots=True)
class ShownPrompt:
    """The parts of its prompts that a response shows; none, by default.

    `echoes` has an item for each prompt, or none without `echo`. With `has_logprobs` the response has the field
    `prompt_logprobs`.
    """

    echoes: tuple[Echo, ...] = ()
    has_logprobs: bool = False


NO_PROMPT = ShownPrompt()


def prompt_logprobs_pieces(scores: Logprobs, token_bytes: TokenBytes) -> Iterator[bytes]:
    """Yield vLLM's `prompt_logprobs` as JSON in pieces that take a millisecond each.

    That is a list with null for the first token of the prompt, and a dict {token id: its log-probability, rank and
    text} for each further one: the token's own entry, then the most likely ones.
    """
    yield b"[null"
    for piece in scores.pieces():
        yield b"," + dump_line([_by_id(token, token_bytes) for token in piece])[1:-1]
    yield b"]"


def _by_id(token: TokenLogprobs, token_bytes: TokenBytes) -> dict[str, dict[str, object]]:
    entries = {str(token.token_id): _entry(token.token_id, token.logprob, token.rank, token_bytes)}
    for rank, (token_id, logprob) in enumerate(zip(token.top_token_ids, token.top_logprobs, strict=True), 1):
        entries.setdefault(str(token_id), _entry(token_id, logprob, rank, token_bytes))
    return entries


def _entry(token_id: int, logprob: float, rank: int, token_bytes: TokenBytes) -> dict[str, object]:
    text = token_bytes(token_id).decode("utf-8", "replace")
    return {"logprob": finite(logprob), "rank": rank, "decoded_token": text}
