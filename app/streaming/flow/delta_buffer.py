"""The pending deltas of one choice: merged as they come in, and split where credit ends or a piece is large enough."""

from __future__ import annotations

from array import array
from bisect import bisect_right

from app.contract.events import TokenDelta
from app.contract.packed_logprobs import Logprobs, row_bytes

# The memory of a pending token: its id, the end of its delta and the end of that delta's text.
TOKEN_BYTES = 12
# The approximate size of a piece: log-probabilities become seven times as much JSON, which takes a millisecond.
PIECE_BYTES = 8 * 1024


class DeltaBuffer:
    """Merges adjacent deltas of one choice.

    A token takes 12 bytes plus its text and log-probabilities; as a separate delta it takes 250 more. A delta can be
    split between its tokens. Its text goes with its last token, because the part of an earlier token is unknown.
    """

    __slots__ = ("_ends", "_first", "_num_taken", "_rows", "_text", "_text_ends", "_text_taken", "_token_ids")

    def __init__(self, delta: TokenDelta) -> None:
        rest = None if delta.logprobs is None else Logprobs(delta.logprobs.num_top)
        self._first = delta._replace(token_ids=(), text="", logprobs=rest)
        self._token_ids = array("i", delta.token_ids)
        self._text = bytearray(delta.text, "utf-8")
        # The ends of the deltas, counted from the first delta of all, including what was taken since.
        self._ends, self._text_ends = array("I", [len(delta.token_ids)]), array("I", [len(self._text)])
        self._num_taken = self._text_taken = 0
        self._rows = bytearray() if delta.logprobs is None else bytearray(delta.logprobs.rows)

    @property
    def num_tokens(self) -> int:
        """The number of pending tokens."""
        return len(self._token_ids)

    @property
    def first(self) -> int:
        """The number of the first pending token."""
        return self._first.first

    def append(self, delta: TokenDelta) -> None:
        """Add the choice's next delta."""
        self._token_ids.extend(delta.token_ids)
        self._text += delta.text.encode()
        self._ends.append(self._num_taken + len(self._token_ids))
        self._text_ends.append(self._text_taken + len(self._text))
        if delta.logprobs is not None:
            self._rows += delta.logprobs.rows

    def take(self, upto: int | None) -> TokenDelta | None:
        """Remove and return a piece of the tokens up to number `upto` (None: all of them), or None if there is none."""
        num_tokens = len(self._token_ids)
        limit = num_tokens if upto is None else min(num_tokens, max(0, upto - self._first.first + 1))
        limit = min(limit, self._piece_tokens())
        return self.take_all() if limit == num_tokens else self._take_some(limit)

    def take_all(self) -> TokenDelta:
        """Remove and return all pending tokens."""
        taken = self._first._replace(
            token_ids=tuple(self._token_ids), text=self._text.decode(), logprobs=self._logprobs(len(self._rows))
        )
        del self._token_ids[:]
        return taken

    def _piece_tokens(self) -> int:
        """Return the number of tokens in a piece; the text of one delta may be longer than a piece."""
        num_deltas = bisect_right(self._text_ends, self._text_taken + PIECE_BYTES)
        num_by_text = self._ends[min(max(num_deltas, 1), len(self._ends)) - 1] - self._num_taken
        num_by_rows = PIECE_BYTES // (TOKEN_BYTES + self._row_bytes)
        return num_by_rows if num_deltas == len(self._ends) else min(num_by_rows, max(1, num_by_text))

    @property
    def _row_bytes(self) -> int:
        return 0 if self._first.logprobs is None else row_bytes(self._first.logprobs.num_top)

    def _take_some(self, limit: int) -> TokenDelta | None:
        """Take `limit` tokens, and the text of the deltas that end within them."""
        num_deltas = bisect_right(self._ends, self._num_taken + limit)
        text_size = self._text_ends[num_deltas - 1] - self._text_taken if num_deltas else 0
        if not limit and not text_size:
            return None
        rows_size = limit * self._row_bytes
        taken = self._first._replace(
            token_ids=tuple(self._token_ids[:limit]),
            text=self._text[:text_size].decode(),
            logprobs=self._logprobs(rows_size),
        )
        self._first = self._first._replace(first=self._first.first + limit)
        del self._token_ids[:limit], self._text[:text_size], self._rows[:rows_size]
        del self._ends[:num_deltas], self._text_ends[:num_deltas]
        self._num_taken += limit
        self._text_taken += text_size
        return taken

    def _logprobs(self, size: int) -> Logprobs | None:
        """Return the log-probabilities in the first `size` bytes of rows; None if the deltas have none."""
        first = self._first.logprobs
        return None if first is None else Logprobs(first.num_top, bytes(self._rows[:size]))


def delta_bytes(delta: TokenDelta) -> int:
    """Return the memory that the tokens of a pending delta, their text and their log-probabilities take."""
    _, _, _, token_ids, text, logprobs = delta  # called for each token of each stream: twice as fast as by name
    num_bytes = TOKEN_BYTES * len(token_ids) + (len(text) if text.isascii() else len(text.encode()))
    return num_bytes if logprobs is None else num_bytes + len(logprobs.rows)
