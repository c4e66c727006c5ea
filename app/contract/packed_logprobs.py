"""Log-probabilities as packed rows: so they leave the engine, cross threads and wait for their readers.

A row is 12 bytes and 8 for each of the best tokens: 172 with 20 of them. As objects these would take 3.2 KiB. What the
tokens say stands in the vocabulary, and is looked up by whoever writes them out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from struct import Struct
from typing import NamedTuple

_PIECE_ENTRIES = 1024


class TokenLogprobs(NamedTuple):
    """One token: the log-softmax of its raw logit, its rank (1 = most likely), and the k best tokens, best first."""

    token_id: int
    logprob: float
    rank: int
    top_token_ids: tuple[int, ...]
    top_logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Logprobs:
    """The log-probabilities of tokens that follow each other; `rows` has one for each, `num_top` best tokens in it."""

    num_top: int
    rows: bytes = b""

    @classmethod
    def of(cls, tokens: Sequence[TokenLogprobs], num_top: int) -> Logprobs:
        """Pack some tokens, each of which has `num_top` best ones."""
        return cls(num_top, b"".join([pack_row(*token) for token in tokens]))

    def __len__(self) -> int:
        return len(self.rows) // row_bytes(self.num_top)

    def __iter__(self) -> Iterator[TokenLogprobs]:
        end = 3 + self.num_top  # of the ids
        for row in _layout(self.num_top).iter_unpack(self.rows):
            yield TokenLogprobs(row[0], row[1], row[2], row[3:end], row[end:])

    def pieces(self) -> Iterator[Logprobs]:
        """Yield the same in pieces that are written out in about a millisecond each."""
        size = row_bytes(self.num_top) * max(1, _PIECE_ENTRIES // (1 + self.num_top))
        for start in range(0, len(self.rows), size):
            yield Logprobs(self.num_top, self.rows[start : start + size])


def pack_row(
    token_id: int, logprob: float, rank: int, top_token_ids: Sequence[int], top_logprobs: Sequence[float]
) -> bytes:
    """Return the row of one token; log-probabilities are kept as float32, which is what models compute them in."""
    return _layout(len(top_token_ids)).pack(token_id, logprob, rank, *top_token_ids, *top_logprobs)


def row_bytes(num_top: int) -> int:
    """Return the size of a row with so many best tokens."""
    return 12 + 8 * num_top


@cache
def _layout(num_top: int) -> Struct:
    return Struct(f"<ifi{num_top}i{num_top}f")
