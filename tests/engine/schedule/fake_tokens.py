"""The tokens of the fake model: which token follows which, and the content of a slot of its memory.

A slot contains the crc32 of all tokens up to its own, seeded with `params.seed`. The next token is a function of the
same crc and of the choice, so n outputs differ. A request with `top_k` has a vocabulary of so few tokens that some
draft tokens are accepted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple
from zlib import crc32

from app.contract.requests import ToldChoice
from app.contract.sampling_params import SamplingParams
from app.engine.schedule.row_sampling import RowSampling
from app.engine.schedule.step_plan import RowStart, Sample, SampleLogprobs

VOCAB_SIZE = 50_000
EOS_TOKEN_ID = 0  # only beams may choose it


def prefix_hash(token_id: int, before: int) -> int:
    """The content of a slot: the hash of `token_id` and of all before it; `before` is their hash, at first the seed."""
    return crc32(token_id.to_bytes(8, "little"), before)


def sample_token(content: int, choice: int, num_words: int = VOCAB_SIZE - 1) -> int:
    """The token that `choice` samples after the tokens hashed in `content`."""
    return 1 + crc32(choice.to_bytes(2, "little"), content) % num_words


def num_words(params: SamplingParams | RowSampling) -> int:
    """The number of different tokens in the outputs of a request."""
    return params.top_k or VOCAB_SIZE - 1


def logprobs_after(content: int, count: int) -> SampleLogprobs:
    """The `count` most likely tokens after the tokens hashed in `content`, sometimes with EOS."""
    count = max(count, 1)
    first, gap = content % (VOCAB_SIZE - 1), 0.1 + (content >> 9 & 0xFF) / 256
    token_ids = [1 + (first + 7 * rank) % (VOCAB_SIZE - 1) for rank in range(count)]
    if content & 3 == 0 and (content >> 4) % 8 < count:
        token_ids[(content >> 4) % 8] = EOS_TOKEN_ID
    logprobs = tuple(-gap * (rank + 1) for rank in range(count))
    return SampleLogprobs(logprobs[0], 1, tuple(token_ids), logprobs)


@lru_cache(maxsize=4096)
def reference(
    prompt: tuple[int, ...], num_tokens: int, choice: int = 0, seed: int = 0, num_words: int = VOCAB_SIZE - 1
) -> list[int]:
    """The first `num_tokens` of the output of `prompt`; do not modify the list."""
    content, tokens = seed, []
    for token_id in prompt:
        content = prefix_hash(token_id, content)
    for _ in range(num_tokens):
        tokens.append(sample_token(content, choice, num_words))
        content = prefix_hash(tokens[-1], content)
    return tokens


def told_choice(prompt: tuple[int, ...], count: int | None, choice: int, params: SamplingParams) -> ToldChoice:
    """What was told of a choice: `count` tokens; None: it has ended."""
    token_ids = reference(prompt, count or 0, choice, params.seed or 0, num_words(params))
    return ToldChoice(tuple(token_ids), has_ended=count is None)


@dataclass(slots=True)
class TokenRow:
    """The state row of a running sequence: its tokens, the content hash of each, its block table."""

    sequence_id: int
    choice: int
    num_logprobs: int | None
    is_beam: bool
    num_words: int
    tokens: list[int]
    hashes: list[int]
    table: list[int] = field(default_factory=list)
    num_read: int = 0  # slots that were read and found correct, and may not change
    sampled_step: int = 0
    candidates: tuple[int, ...] = ()

    @classmethod
    def from_start(cls, start: RowStart) -> TokenRow:
        """Return the row of a sequence that starts or restarts."""
        sampling = start.sampling
        content, hashes, tokens = sampling.seed, [], [*start.prompt_token_ids, *start.output_token_ids]
        for token_id in tokens:
            content = crc32(token_id.to_bytes(8, "little"), content)
            hashes.append(content)
        return cls(
            start.sequence_id,
            start.choice,
            sampling.num_logprobs,
            sampling.is_beam_search,
            num_words(sampling),
            tokens,
            hashes,
        )

    def put_last(self, token_id: int) -> None:
        """Replace the last token."""
        self.tokens[-1] = token_id
        self.hashes[-1] = prefix_hash(token_id, self.hashes[-2])

    def hashes_of(self, token_ids: tuple[int, ...], start: int) -> list[int]:
        """The contents of the slots from `start` on for `token_ids`: own tokens, then draft tokens."""
        own = self.hashes[start : start + len(token_ids)]
        for token_id in token_ids[len(own) :]:
            own.append(prefix_hash(token_id, own[-1]))
        return own

    def sample_rejected(self, content: int) -> Sample:
        """Sample after a rejected draft token; nothing is appended."""
        logprobs = None if self.num_logprobs is None else logprobs_after(content, self.num_logprobs)
        return Sample(self.sequence_id, sample_token(content, self.choice, self.num_words), logprobs)

    def sample(self, step: int) -> Sample:
        """Sample the next token and append it."""
        content, logprobs = self.hashes[-1], None
        if self.num_logprobs is not None:
            logprobs = logprobs_after(content, self.num_logprobs)
        token_id = sample_token(content, self.choice, self.num_words)
        if logprobs is not None and self.is_beam:
            self.candidates = logprobs.top_token_ids
            token_id = self.candidates[0]
        self.tokens.append(token_id)
        self.hashes.append(prefix_hash(token_id, content))
        self.sampled_step = step
        return Sample(self.sequence_id, token_id, logprobs)


class LogitSource(NamedTuple):
    """A token row that is sampled from: its state row, the content of its slot, and whether its token is a draft."""

    row: TokenRow
    content: int
    is_draft: bool
