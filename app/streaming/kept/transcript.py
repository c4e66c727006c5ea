"""The transcript of one choice: all that was told of it, cut anywhere for a reader that comes back, sans I/O.

A position is the number of tokens that a reader has been told. What was told with it is a function of the position
alone: the text of all deltas that end at or before it. So the ends of the deltas are kept, and every reader, on every
transport, agrees on the text behind a number.

The last delta of a choice can be without tokens (engine/choice.py). That tail has a position of its own, one above the
last token's: whoever stands there has all, and whoever stands at the last token gets it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right

from app.contract.events import TokenDelta
from app.contract.packed_logprobs import Logprobs, row_bytes
from app.journal.entries import Columns
from app.streaming.flow.delta_buffer import PIECE_BYTES, TOKEN_BYTES


class Transcript:
    """The deltas of one choice, in the order of their numbers: 12 bytes a token, its text and its log-probabilities.

    Attributes:
        num_tokens: the number of tokens.
        has_tail: whether a delta without tokens has come; it is the last one.
        last: the position of a reader that was told everything.
    """

    __slots__ = (
        "_choice", "_ends", "_id", "_newest", "_num_top", "_rows", "_text", "_text_ends", "_token_ids", "has_tail",
        "last", "num_tokens",
    )  # fmt: skip

    def __init__(self, answer_id: str, choice: int) -> None:
        self._id = answer_id
        self._choice = choice
        self._token_ids = array("i")
        # Where each delta ends: in the tokens, and in the bytes of the text. That of a tail is in the text alone.
        self._ends, self._text_ends = array("I"), array("I")
        self._text = bytearray()
        self._num_top: int | None = None
        self._rows = bytearray()
        self._newest: TokenDelta | None = None  # which is what nearly all readers want next
        self.num_tokens = self.last = 0
        self.has_tail = False

    def append(self, delta: TokenDelta) -> int:
        """Add the choice's next delta; return its size in bytes."""
        request_id, choice, first, token_ids, text, logprobs = delta  # for each token of each stream: twice as fast
        assert not self.has_tail and first == self.num_tokens + 1, first
        self._newest = delta if request_id == self._id and choice == self._choice else None
        num_bytes = TOKEN_BYTES * len(token_ids) - len(self._text)
        self._text += text.encode()
        num_bytes += len(self._text)
        self._text_ends.append(len(self._text))
        if token_ids:
            self._token_ids.extend(token_ids)
            self.num_tokens = self.last = len(self._token_ids)
            self._ends.append(self.num_tokens)
        else:
            self.has_tail = True
            self.last += 1
        if logprobs is not None:
            self._num_top = logprobs.num_top
            self._rows += logprobs.rows
            num_bytes += len(logprobs.rows)
        return num_bytes

    def extend(self, deltas: Columns) -> int:
        """Add further deltas, as `append` does one by one; return their size in bytes."""
        assert not self.has_tail, "the tail is the last delta"
        ends, text_ends = array("I", deltas.ends), array("I", deltas.text_ends)
        if self._text_ends:
            ends = array("I", [self.num_tokens + end for end in ends])
            text_ends = array("I", [len(self._text) + end for end in text_ends])
        self._token_ids.frombytes(deltas.token_ids)
        self._ends += ends
        self._text += deltas.text
        self._text_ends += text_ends
        if deltas.num_top is not None:
            self._num_top = deltas.num_top
            self._rows += deltas.rows
        num_new = len(self._token_ids) - self.num_tokens
        self.num_tokens += num_new
        self.has_tail = len(self._ends) < len(self._text_ends)
        self.last = self.num_tokens + self.has_tail
        return TOKEN_BYTES * num_new + len(deltas.text) + len(deltas.rows)

    def columns(self) -> Columns:
        """Return all deltas, as `extend` takes them. Any thread, while none is added."""
        return Columns(
            self._choice,
            self._token_ids.tobytes(),
            self._ends.tobytes(),
            bytes(self._text),
            self._text_ends.tobytes(),
            self._num_top,
            bytes(self._rows),
        )

    def trim(self) -> None:
        """Give back the memory that was taken in advance, about an eighth: no delta comes any more."""
        self._newest = None
        self._token_ids, self._ends = array("i", self._token_ids), array("I", self._ends)
        self._text_ends = array("I", self._text_ends)
        self._text, self._rows = bytearray(self._text), bytearray(self._rows)

    def cut(self, after: int, upto: int) -> TokenDelta:
        """Return the delta between two positions, `after` < `upto` <= `last`. A tail is never part of more."""
        assert 0 <= after < upto <= self.last, (after, upto)
        upto = min(upto, max(self.num_tokens, after + 1))
        text = self._text[self._text_end(after) : self._text_end(upto)].decode()
        logprobs = None
        if self._num_top is not None:
            logprobs = Logprobs(self._num_top, bytes(self._rows[self._rows_end(after) : self._rows_end(upto)]))
        return TokenDelta(self._id, self._choice, after + 1, tuple(self._token_ids[after:upto]), text, logprobs)

    def delta(self, after: int) -> TokenDelta:
        """Return the delta behind a position that one ends at, as the engine has told it; `after` < `last`."""
        newest = self._newest
        if newest is not None and newest.first == after + 1:
            return newest
        number = bisect_right(self._ends, after)
        return self.cut(after, self._ends[number] if number < len(self._ends) else self.last)

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The ids of all tokens."""
        return tuple(self._token_ids)

    def piece(self, after: int, upto: int) -> TokenDelta:
        """Return the beginning of `cut`, about as long as a piece; the text of one delta may be longer."""
        newest = self._newest
        if newest is not None and newest.first == after + 1 and upto == self.last:
            return newest
        num_rows = PIECE_BYTES // (TOKEN_BYTES + self._row_bytes)
        num_deltas = bisect_right(self._text_ends, self._text_end(after) + PIECE_BYTES)
        if num_deltas < len(self._ends):
            by_text = self._ends[num_deltas - 1] if num_deltas else 0
            upto = min(upto, max(by_text, after + 1))
        return self.cut(after, min(upto, after + max(num_rows, 1)))

    def num_bytes(self, upto: int) -> int:
        """Return the bytes of all that is told with a position, counted like those of its deltas."""
        return min(upto, self.num_tokens) * TOKEN_BYTES + self._text_end(upto) + self._rows_end(upto)

    @property
    def _row_bytes(self) -> int:
        return 0 if self._num_top is None else row_bytes(self._num_top)

    def _text_end(self, position: int) -> int:
        if position > self.num_tokens:
            return len(self._text)
        num_deltas = bisect_right(self._ends, position)
        return self._text_ends[num_deltas - 1] if num_deltas else 0

    def _rows_end(self, position: int) -> int:
        """Return the end of a position's rows. Rows above the number of tokens are of the token that ended the choice:
        they come with the last delta.
        """
        num_told = len(self._token_ids)
        is_last = position > num_told or (position == num_told and not self.has_tail)
        return len(self._rows) if is_last else position * self._row_bytes
