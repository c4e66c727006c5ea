"""Log-probabilities as packed rows: the form in which they leave the engine, cross threads and wait to be sent.

A row has 12 bytes, and 8 bytes for each of the most likely tokens: 172 bytes with 20 of them, where objects would take
3.2 KiB. The tokens' texts are looked up in the vocabulary when a response is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from struct import Struct
from typing import NamedTuple

_ENTRIES_PER_PIECE = 1024


class TokenLogprobs(NamedTuple):
    """One token: the log-softmax of its raw logit, its rank (1 = most likely), and the k best tokens, best first."""

    token_id: int
    logprob: float
    rank: int
    top_token_ids: tuple[int, ...]
    top_logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Logprobs:
    """The log-probabilities of consecutive tokens: one row per token in `rows`, each with the `num_top` best tokens."""

    num_top: int
    rows: bytes = b""

    @classmethod
    def of(cls, tokens: Sequence[TokenLogprobs], num_top: int) -> Logprobs:
        """Pack tokens, each with `num_top` best tokens."""
        return cls(num_top, b"".join([pack_row(*token) for token in tokens]))

    @classmethod
    def of_rows(cls, rows: bytes, num_rows: int) -> Logprobs:
        """Return packed rows of equal size; how many best tokens they have is told by the size."""
        return cls((len(rows) // num_rows - row_bytes(0)) // 8 if num_rows else 0, rows)

    def __len__(self) -> int:
        return len(self.rows) // row_bytes(self.num_top)

    def __iter__(self) -> Iterator[TokenLogprobs]:
        end = 3 + self.num_top  # of the ids
        for row in _layout(self.num_top).iter_unpack(self.rows):
            yield TokenLogprobs(row[0], row[1], row[2], row[3:end], row[end:])

    def pieces(self) -> Iterator[Logprobs]:
        """Yield the rows in pieces that take about a millisecond each to write as JSON."""
        size = row_bytes(self.num_top) * max(1, _ENTRIES_PER_PIECE // (1 + self.num_top))
        for start in range(0, len(self.rows), size):
            yield Logprobs(self.num_top, self.rows[start : start + size])


def pack_row(
    token_id: int, logprob: float, rank: int, top_token_ids: Sequence[int], top_logprobs: Sequence[float]
) -> bytes:
    """Return the row of one token; log-probabilities are float32, the type in which models compute them."""
    return _layout(len(top_token_ids)).pack(token_id, logprob, rank, *top_token_ids, *top_logprobs)


def row_bytes(num_top: int) -> int:
    """Return the size of a row with `num_top` best tokens."""
    return 12 + 8 * num_top


@cache
def _layout(num_top: int) -> Struct:
    return Struct(f"<ifi{num_top}i{num_top}f")
